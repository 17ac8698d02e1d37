"""Engines: what samples tokens after tokens, found by name."""

from __future__ import annotations

from collections.abc import Callable

from polar.engines.base import Capabilities, Chunk, Engine, SampleRequest
from polar.engines.taped import TapedEngine, TapeEntry, read_tape
from polar.plugins import Family

__all__ = [
    "Capabilities",
    "Chunk",
    "Engine",
    "SampleRequest",
    "TapeEntry",
    "TapedEngine",
    "load",
    "names",
    "read_tape",
]

_FAMILY: Family[Callable[..., Engine]] = Family(
    "engine",
    "polar.engines",
    {
        "embedded": "polar.engines.embedded:EmbeddedEngine",
        "llamacpp": "polar.engines.llamacpp:LlamaCppEngine",
        "openai": "polar.engines.openai:OpenAIEngine",
        "sglang": "polar.engines.sglang:SglangEngine",
        "vllm": "polar.engines.vllm:VllmEngine",
    },
)


def names() -> tuple[str, ...]:
    """Name all engines: Polar's own first, then those of installed plug-ins."""
    return _FAMILY.names()


def load(name: str) -> Callable[..., Engine]:
    """Import the class of an engine; each one is made from what it needs (a model, an address).

    Raises:
        ConfigError: There is none of that name.
    """
    return _FAMILY.load(name)
