"""Scorers: user code that says what single calls were worth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from polar.errors import ConfigError
from polar.gateway.scorers.base import Scorer
from polar.gateway.scorers.command import CommandScorer
from polar.gateway.scorers.function import FunctionScorer
from polar.gateway.scorers.settings import ScorerSpec
from polar.gateway.user_code import load_function
from polar.tasks.problems import nearest

__all__ = ["Scorer", "ScorerSpec", "make", "names"]

_GROUP = "polar.scorers"


def names() -> tuple[str, ...]:
    """List the scorers of installed packages."""
    return tuple(sorted(found.name for found in entry_points(group=_GROUP)))


def make(spec: ScorerSpec) -> Scorer:
    """Make the scorer that the config declares.

    Raises:
        ConfigError: There is none of that name, or the function cannot be imported.
    """
    if spec.command is not None:
        return CommandScorer(spec.command, timeout_s=spec.timeout_s)
    function = _named(spec.name) if spec.python is None else load_function(spec.python)
    return FunctionScorer(
        partial(function, **spec.settings), timeout_s=spec.timeout_s, most_hanging=spec.workers
    )


def _named(name: str | None) -> Callable[..., Any]:
    for entry in entry_points(group=_GROUP, name=name or ""):
        found: Callable[..., Any] = entry.load()
        return found
    known = names()
    raise ConfigError(
        f"there is no scorer `{name}`",
        fix=nearest(name or "", known) if known else "Install the package that has it.",
    )
