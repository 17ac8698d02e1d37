"""Server-sent events: one JSON object a `data` line, safe for every line splitter."""

from __future__ import annotations

import orjson

__all__ = ["DONE", "data_event", "named_event"]

DONE = b"data: [DONE]\n\n"

_LINE_BREAKS = (
    ("\u0085".encode(), b"\\u0085"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)
"""Characters that JSON allows raw but that some clients take for the end of a line."""


def data_event(value: object) -> bytes:
    """Encode one event."""
    data = orjson.dumps(value)
    for raw, escaped in _LINE_BREAKS:
        if raw in data:
            data = data.replace(raw, escaped)
    return b"data: " + data + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    """Encode one event that is told by its name as well as by its data."""
    return b"event: " + name.encode() + b"\n" + data_event(value)
