"""Which conversations go on from a summary that the model was asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from polar.rendering import Prepared
from polar.types import Call, CallKind, Message

__all__ = ["COMPACTION", "Summaries"]

COMPACTION = "compaction"
"""The reason of a fork that a harness made to shorten its history."""

_REWRITES = ("changed_tools", "edited_message", "new_conversation")
_TAG = re.compile(r"</?\w+>")


class Summaries:
    """Tells a history that was summarised from one that was changed for another reason.

    Harnesses keep the end of a summary, whatever they wrap it in or leave out of its beginning
    (the model's analysis). Each summary explains one fork: later ones have reasons of their own.
    """

    def __init__(self) -> None:
        self._endings: list[str] = []

    def add(self, call: Call) -> None:
        """Keep the summary that a compaction brought."""
        ending = _ending(call.reply.content)
        if call.kind == "compaction" and ending:
            self._endings.append(ending)

    def explain(self, prepared: Prepared, kind: CallKind, messages: Sequence[Message]) -> Prepared:
        """Give a fork its reason, if it is a summary: one that is asked for, or one in use.

        Args:
            prepared: The prompt of a request, with the reason that its messages show.
            kind: What the request is for.
            messages: Its conversation.
        """
        if prepared.fork_reason not in _REWRITES:
            return prepared
        used = [ending for ending in self._endings if _holds(messages, ending)]
        if kind != "compaction" and not used:
            return prepared
        self._endings = [ending for ending in self._endings if ending not in used]
        return replace(prepared, fork_reason=COMPACTION)


def _ending(summary: str) -> str:
    """Give the last line that is more than a tag."""
    lines = (_TAG.sub("", line).strip() for line in reversed(summary.splitlines()))
    return next((line for line in lines if line), "")


def _holds(messages: Sequence[Message], ending: str) -> bool:
    return any(ending in message.content for message in messages)
