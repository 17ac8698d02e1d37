"""Engines: what samples tokens after tokens, found by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from polar.engines.base import Capabilities, Chunk, Engine, SampleRequest
from polar.engines.taped import TapedEngine, TapeEntry, read_tape
from polar.errors import ConfigError

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

_GROUP = "polar.engines"
_TABLE = {
    "embedded": "polar.engines.embedded:EmbeddedEngine",
    "llamacpp": "polar.engines.llamacpp:LlamaCppEngine",
    "scripted": "polar.engines.scripted:ScriptedEngine",
    "vllm": "polar.engines.vllm:VllmEngine",
}


def names() -> tuple[str, ...]:
    """Name all engines: Polar's own first, then those of installed plug-ins."""
    return (*_TABLE, *(name for name in sorted(_plugins()) if name not in _TABLE))


def load(name: str) -> Callable[..., Engine]:
    """Import the class of an engine; each one is made from what it needs (a model, an address).

    Raises:
        ConfigError: There is none of that name.
    """
    if name in _TABLE:
        module, _, attribute = _TABLE[name].partition(":")
        engine: Callable[..., Engine] = getattr(import_module(module), attribute)
        return engine
    if (plugin := _plugins().get(name)) is not None:
        loaded: Callable[..., Engine] = plugin.load()
        return loaded
    near = difflib.get_close_matches(name, names(), n=1)
    raise ConfigError(
        f"there is no engine named '{name}'",
        fix=f"Did you mean '{near[0]}'?" if near else f"Choose one of {', '.join(names())}.",
    )


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=_GROUP)}
