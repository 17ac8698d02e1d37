"""Figures of a gateway, for whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping

from polar.gateway.gateway import Gateway

__all__ = ["metrics"]


def metrics(gateway: Gateway) -> Mapping[str, object]:
    """Count what a gateway has done up to now."""
    return {
        "open_sessions": gateway.open_sessions,
        "paused": bool(gateway.holders),
        "holders": sorted(gateway.holders),
        "paused_s": gateway.paused_s(),
        "cut_connections": gateway.cut_connections,
        "totals": gateway.totals,
    }
