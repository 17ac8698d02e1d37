"""Runtimes: places where a harness runs, isolated as far as the machine allows, found by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from polar.errors import ConfigError, SetupError
from polar.runtimes.base import Runtime

__all__ = ["Choice", "default_runtime", "load", "names"]

_GROUP = "polar.runtimes"
_TABLE = {
    "bubblewrap": "polar.runtimes.bubblewrap:BubblewrapRuntime",
    "local": "polar.runtimes.local:LocalRuntime",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The runtime chosen for this machine."""

    name: str
    runtime: Runtime
    warning: str | None
    """What is not protected, and why; absent where all is."""


def names() -> tuple[str, ...]:
    """Name all runtimes: Polar's own first, then those of installed plug-ins."""
    return (*_TABLE, *(name for name in sorted(_plugins()) if name not in _TABLE))


def load(name: str) -> Callable[..., Runtime]:
    """Load the class of a runtime by its name; called without arguments it has its defaults.

    Raises:
        ConfigError: There is none of that name.
    """
    if name in _TABLE:
        module, _, attribute = _TABLE[name].partition(":")
        own: Callable[..., Runtime] = getattr(import_module(module), attribute)
        return own
    if (plugin := _plugins().get(name)) is not None:
        loaded: Callable[..., Runtime] = plugin.load()
        return loaded
    near = difflib.get_close_matches(name, names(), n=1)
    raise ConfigError(
        f"there is no runtime named '{name}'",
        fix=f"Did you mean '{near[0]}'?" if near else f"Choose one of {', '.join(names())}.",
    )


def default_runtime() -> Choice:
    """Choose bubblewrap where it works, else plain local processes with a warning.

    Tries to make a sandbox, which takes some hundredths of a second.
    """
    from polar.runtimes.bubblewrap import BubblewrapRuntime
    from polar.runtimes.local import LocalRuntime

    sandboxed = BubblewrapRuntime()
    try:
        sandboxed.probe()
    except SetupError as error:
        return Choice(
            "local",
            LocalRuntime(),
            f"agents run without a sandbox, with your files and network within reach: {error}",
        )
    return Choice("bubblewrap", sandboxed, None)


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=_GROUP)}
