"""Wire formats that harnesses speak: each a pure translation, found by name."""

from __future__ import annotations

import difflib
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from polar.dialects.base import CountsTokens, Dialect, ReadsOn, Route, StreamEncoder
from polar.dialects.earlier import Earlier
from polar.errors import ConfigError

__all__ = [
    "CountsTokens",
    "Dialect",
    "Earlier",
    "ReadsOn",
    "Route",
    "StreamEncoder",
    "load",
    "names",
]

_GROUP = "polar.dialects"
_TABLE = {
    "openai_chat": "polar.dialects.openai_chat:OpenAIChat",
    "anthropic_messages": "polar.dialects.anthropic_messages:AnthropicMessages",
    "openai_responses": "polar.dialects.openai_responses:OpenAIResponses",
    "google_generate": "polar.dialects.google_generate:GoogleGenerate",
}


def names() -> tuple[str, ...]:
    """Name all dialects: Polar's own first, then those of installed plug-ins."""
    return (*_TABLE, *(name for name in sorted(_plugins()) if name not in _TABLE))


def load(name: str) -> Dialect:
    """Load a dialect by its name.

    Raises:
        ConfigError: There is none of that name.
    """
    if name in _TABLE:
        module, _, attribute = _TABLE[name].partition(":")
        dialect: Dialect = getattr(import_module(module), attribute)()
        return dialect
    if (plugin := _plugins().get(name)) is not None:
        loaded: Dialect = plugin.load()()
        return loaded
    near = difflib.get_close_matches(name, names(), n=1)
    raise ConfigError(
        f"there is no dialect named '{name}'",
        fix=f"Did you mean '{near[0]}'?" if near else f"Choose one of {', '.join(names())}.",
    )


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=_GROUP)}
