"""What the kinds of calls tell about why a request extends no earlier one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from polar.rendering import Prepared
from polar.types import Call, CallKind, Message

__all__ = ["ForkReasons"]

_REWRITES = ("changed_tools", "edited_message", "new_conversation")
_TAG = re.compile(r"</?\w+>")


class ForkReasons:
    """Corrects the reasons of forks that can be told only with the kinds of a session's calls.

    A history that was summarised forks for a `compaction`. Harnesses keep the end of a summary,
    whatever they wrap it in or leave out of its beginning (the model's analysis). Each summary
    explains one fork: later ones have reasons of their own.

    A sub-agent or a side call that has had no reply yet is a `new_conversation`, even where it
    begins as another one does.
    """

    def __init__(self) -> None:
        self._endings: list[str] = []

    def add(self, call: Call) -> None:
        """Keep the summary that a compaction brought."""
        ending = _ending(call.reply.content)
        if call.kind == "compaction" and ending:
            self._endings.append(ending)

    def explain(self, prepared: Prepared, kind: CallKind, messages: Sequence[Message]) -> Prepared:
        """Give a fork the reason that its kind and the summaries so far show, if they do.

        Args:
            prepared: The prompt of a request, with the reason that its messages show.
            kind: What the request is for.
            messages: Its conversation.
        """
        if prepared.fork_reason not in _REWRITES:
            return prepared
        used = [ending for ending in self._endings if _holds(messages, ending)]
        self._endings = [ending for ending in self._endings if ending not in used]
        if kind == "compaction" or used:
            return replace(prepared, fork_reason="compaction")
        aside = kind in ("subagent", "auxiliary")
        if aside and all(message.role != "assistant" for message in messages):
            return replace(prepared, fork_reason="new_conversation")
        return prepared


def _ending(summary: str) -> str:
    """Give the last line that is more than a tag."""
    lines = (_TAG.sub("", line).strip() for line in reversed(summary.splitlines()))
    return next((line for line in lines if line), "")


def _holds(messages: Sequence[Message], ending: str) -> bool:
    return any(ending in message.content for message in messages)
