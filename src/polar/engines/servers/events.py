"""What happens to servers, as records of a logger that a run writes to its folder."""

from __future__ import annotations

import logging
from typing import Literal

__all__ = ["LOGGER", "EventName", "log_event"]

LOGGER = "polar.engines"

EventName = Literal["lost", "returned", "moved"]
"""`lost`: serves no longer; `returned`: serves again; `moved`: a call left it for another."""


def log_event(address: str, event: EventName, detail: str) -> None:
    """Log an event; its parts are on the record as `address`, `event` and `detail`."""
    logging.getLogger(LOGGER).warning(
        "%s: %s: %s",
        address,
        event,
        detail,
        extra={"address": address, "event": event, "detail": detail},
    )
