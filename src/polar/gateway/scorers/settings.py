"""Settings of the scorer."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from polar.gateway.user_code import FunctionName
from polar.tasks.problems import Refused
from polar.types import CallKind

__all__ = ["ScorerSpec"]


class ScorerSpec(BaseModel):
    """Your code that scores single calls: a `name`, `python` or a `command`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    """A name that an installed package offers in the entry-point group `polar.scorers`."""
    python: FunctionName | None = None
    """`module:function` or `file.py:function` of your own: takes a `Call`, returns a number, or
    None for no score."""
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Program and arguments: reads the call as JSON, prints a number, or `null` for no score."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Longest time for one call."""
    workers: int = Field(default=4, ge=1)
    """Calls that are scored at the same time."""
    kinds: tuple[CallKind, ...] = ("main", "subagent")
    """Kinds of calls that are scored; by default those that are trained."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = [way for way in (self.name, self.python, self.command) if way is not None]
        if len(given) != 1:
            raise Refused(
                "a scorer has `name`, `python` or `command`", fix="Give exactly one of the three."
            )
        if self.command is not None and self.settings:
            raise Refused("a command takes no `settings`", fix="Give them as its arguments.")
        return self
