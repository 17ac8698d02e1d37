"""Figures of a gateway, for whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping

from polar.gateway.boundary import ModelBoundary

__all__ = ["metrics"]


async def metrics(gateway: ModelBoundary) -> Mapping[str, object]:
    """Count what a gateway has done up to now."""
    figures = await gateway.figures()
    return {
        "open_sessions": figures.open_sessions,
        "paused": bool(gateway.holders),
        "holders": sorted(gateway.holders),
        "paused_s": gateway.paused_s(),
        "cut_connections": figures.cut_connections,
        "totals": figures.totals,
    }
