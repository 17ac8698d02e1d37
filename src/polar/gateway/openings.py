"""Begins a reply with the call that a harness asks for, as a part of the prompt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polar.errors import BadRequest
from polar.rendering import OpensCalls, Prepared, Renderer
from polar.types import Chat, Forced

__all__ = ["opened", "refuse_forced"]


def opened(prepared: Prepared, chat: Chat, renderer: Renderer) -> Prepared:
    """Add to a prompt how the call begins that the reply has to be, if it has to be one.

    Args:
        prepared: The prompt, which ends where the reply begins.
        chat: The request as the model sees it.
        renderer: Of the model.

    Raises:
        BadRequest: The tool is not offered, or how the model begins a call is not known.
    """
    forced = chat.forced
    if forced is None:
        return prepared
    opening = (
        renderer.call_opening(_name(forced, chat)) if isinstance(renderer, OpensCalls) else None
    )
    if opening is None:
        raise _refusal(forced, "how this model begins a call is not known")
    ids = np.array(opening, dtype=np.int32)
    return replace(
        prepared,
        prompt_ids=np.concatenate([prepared.prompt_ids, ids]),
        opening_tokens=len(ids),
    )


def refuse_forced(chat: Chat) -> None:
    """Refuse a call that has to be, where the engine makes the prompt.

    Raises:
        BadRequest: There is one.
    """
    if chat.forced is not None:
        raise _refusal(chat.forced, "the engine makes the prompt, so that it cannot be added to")


def _name(forced: Forced, chat: Chat) -> str | None:
    """Tell which tool is called, where that is not for the model to say."""
    names = [tool.name for tool in chat.tools]
    if forced.name is not None and forced.name not in names:
        raise _refusal(forced, f"the tool '{forced.name}' is not offered to the model")
    if not names:
        raise _refusal(forced, "no tool is offered to the model")
    return names[0] if len(names) == 1 else forced.name


def _refusal(forced: Forced, reason: str) -> BadRequest:
    return BadRequest(
        f"that a tool is called cannot be forced here: {reason}",
        where=forced.where,
        fix="Leave the choice to the model.",
    )
