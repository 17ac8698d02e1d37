"""Runtimes: places where a harness runs, isolated as far as the machine allows, found by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polar.errors import SetupError
from polar.plugins import Family
from polar.runtimes.base import Runtime

__all__ = ["Choice", "default_runtime", "load", "names"]

_FAMILY: Family[Callable[..., Runtime]] = Family(
    "runtime",
    "polar.runtimes",
    {
        "bubblewrap": "polar.runtimes.bubblewrap:BubblewrapRuntime",
        "local": "polar.runtimes.local:LocalRuntime",
    },
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The runtime chosen for this machine."""

    name: str
    runtime: Runtime
    warning: str | None
    """What is not protected, and why; absent where all is."""


def names() -> tuple[str, ...]:
    """Name all runtimes: Polar's own first, then those of installed plug-ins."""
    return _FAMILY.names()


def load(name: str) -> Callable[..., Runtime]:
    """Load the class of a runtime by its name; called without arguments it has its defaults.

    Raises:
        ConfigError: There is none of that name.
    """
    return _FAMILY.load(name)


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
