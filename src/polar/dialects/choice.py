"""Which tool a request wants to be called, told by the names that it allows."""

from __future__ import annotations

from collections.abc import Sequence

from polar.dialects.fields import refuse
from polar.types import Forced, ToolSpec

__all__ = ["check_all_allowed", "forced_call"]


def forced_call(tools: Sequence[ToolSpec], allowed: Sequence[str] | None, *, where: str) -> Forced:
    """Say what a reply must call.

    The model writes the name of one of several tools by itself, and could write any: so one
    tool can be forced, or a call of any, but not one of some.

    Args:
        tools: What is offered.
        allowed: Names of those that may be called; absent: all.
        where: The field that asks for it.

    Raises:
        BadRequest: There is no such tool, or some of several are allowed.
    """
    if not tools:
        raise refuse("there are no tools of which one could be called", where=where)
    if allowed is not None:
        names = _known(tools, allowed, where=where)
        if len(names) == 1:
            return Forced(next(iter(names)), where)
        check_all_allowed(tools, allowed, where=where)
    return Forced(None, where)


def check_all_allowed(tools: Sequence[ToolSpec], allowed: Sequence[str], *, where: str) -> None:
    """Refuse to allow some tools and not all that are offered.

    Raises:
        BadRequest: That is asked for, or there is no such tool.
    """
    if len(_known(tools, allowed, where=where)) < len({tool.name for tool in tools}):
        raise refuse(
            "that only some of the tools may be called is not supported",
            where=where,
            fix="Offer those alone.",
        )


def _known(tools: Sequence[ToolSpec], allowed: Sequence[str], *, where: str) -> set[str]:
    unknown = [name for name in allowed if name not in {tool.name for tool in tools}]
    if unknown:
        raise refuse(f"there is no tool '{unknown[0]}'", where=where)
    return set(allowed)
