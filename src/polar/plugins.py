"""Finds implementations by name: Polar's own, and those that installed packages offer."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from polar.errors import ConfigError

__all__ = ["Family"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Family(Generic[T]):
    """Implementations of one thing, each imported when it is asked for.

    A package offers one by an entry point; Polar's own go before those of the same name.
    """

    kind: str
    """What one is called: `engine`."""
    group: str
    """Entry-point group of installed packages: `polar.engines`."""
    own: Mapping[str, str] = field(default_factory=dict)
    """Name -> `module:attribute`."""

    def names(self) -> tuple[str, ...]:
        """Name all: Polar's own first, then those of installed packages."""
        return (*self.own, *(name for name in sorted(self._offered()) if name not in self.own))

    def load(self, name: str) -> T:
        """Import one.

        Raises:
            ConfigError: There is none of that name.
        """
        if name in self.own:
            module, _, attribute = self.own[name].partition(":")
            found: T = getattr(import_module(module), attribute)
            return found
        if (entry := self._offered().get(name)) is not None:
            offered: T = entry.load()
            return offered
        raise ConfigError(f"there is no {self.kind} `{name}`", fix=self._instead_of(name))

    def _instead_of(self, name: str) -> str:
        known = self.names()
        if not known:
            return f"Install the package that has it: none offers a {self.kind}."
        near = difflib.get_close_matches(name, known, n=1)
        return f"Did you mean `{near[0]}`?" if near else f"Use one of: {', '.join(known)}."

    def _offered(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=self.group)}
