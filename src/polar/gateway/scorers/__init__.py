"""Scorers: user code that says what single calls were worth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from polar.gateway.scorers.base import Scorer
from polar.gateway.scorers.command import CommandScorer
from polar.gateway.scorers.function import FunctionScorer
from polar.gateway.scorers.settings import ScorerSpec
from polar.gateway.user_code import load_function
from polar.plugins import Family

__all__ = ["Scorer", "ScorerSpec", "make", "names"]

_FAMILY: Family[Callable[..., Any]] = Family("scorer", "polar.scorers")


def names() -> tuple[str, ...]:
    """List the scorers of installed packages."""
    return _FAMILY.names()


def make(spec: ScorerSpec) -> Scorer:
    """Make the scorer that the config declares.

    Raises:
        ConfigError: There is none of that name, or the function cannot be imported.
    """
    if spec.command is not None:
        return CommandScorer(spec.command, timeout_s=spec.timeout_s)
    function = _FAMILY.load(spec.name or "") if spec.python is None else load_function(spec.python)
    return FunctionScorer(
        partial(function, **spec.settings), timeout_s=spec.timeout_s, most_hanging=spec.workers
    )
