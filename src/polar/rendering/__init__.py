"""Messages to token ids and back: renderers, incremental parsers, the splice between turns."""

from __future__ import annotations

from polar.rendering.base import IncrementalParser, OpensCalls, Prepared, Renderer
from polar.rendering.load import load_renderer
from polar.rendering.parsing import joined
from polar.rendering.splice import SessionSplicer

__all__ = [
    "IncrementalParser",
    "OpensCalls",
    "Prepared",
    "Renderer",
    "SessionSplicer",
    "joined",
    "load_renderer",
]
