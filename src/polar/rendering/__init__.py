"""Messages to token ids and back: renderers, incremental parsers, the splice between turns."""

from __future__ import annotations

from polar.rendering.base import IncrementalParser, Prepared, Renderer
from polar.rendering.load import load_renderer
from polar.rendering.parsing import joined
from polar.rendering.splice import SessionSplicer

__all__ = [
    "IncrementalParser",
    "Prepared",
    "Renderer",
    "SessionSplicer",
    "joined",
    "load_renderer",
]
