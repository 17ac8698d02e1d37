"""Harness presets: how to find, start and read agent programs, found by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from polar.errors import ConfigError
from polar.harnesses.base import Harness

__all__ = ["load", "names"]

_GROUP = "polar.harnesses"
_TABLE = {
    "claude_code": "polar.harnesses.claude_code:ClaudeCode",
    "codex": "polar.harnesses.codex:Codex",
    "gemini_cli": "polar.harnesses.gemini_cli:GeminiCli",
    "mini_swe_agent": "polar.harnesses.mini_swe_agent:MiniSweAgent",
    "opencode": "polar.harnesses.opencode:OpenCode",
    "pi": "polar.harnesses.pi:Pi",
    "qwen_code": "polar.harnesses.qwen_code:QwenCode",
    "shell": "polar.harnesses.shell:Shell",
}


def names() -> tuple[str, ...]:
    """Name all presets: Polar's own first, then those of installed plug-ins."""
    return (*_TABLE, *(name for name in sorted(_plugins()) if name not in _TABLE))


def load(name: str) -> Callable[..., Harness]:
    """Load the class of a preset by its name; it is called with its settings.

    Raises:
        ConfigError: There is none of that name.
    """
    if name in _TABLE:
        module, _, attribute = _TABLE[name].partition(":")
        own: Callable[..., Harness] = getattr(import_module(module), attribute)
        return own
    if (plugin := _plugins().get(name)) is not None:
        loaded: Callable[..., Harness] = plugin.load()
        return loaded
    near = difflib.get_close_matches(name, names(), n=1)
    raise ConfigError(
        f"there is no harness named '{name}'",
        fix=f"Did you mean '{near[0]}'?" if near else f"Choose one of {', '.join(names())}.",
    )


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=_GROUP)}
