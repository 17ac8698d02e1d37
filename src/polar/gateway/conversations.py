"""What was said up to each response from which a later request may continue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from polar.types import Message

__all__ = ["Conversations"]


class Conversations:
    """What was said up to each response that may be continued, as one tree of messages.

    Conversations share the messages they begin with, so that what is kept grows with what is
    new in each call and not with the length of the conversation.
    """

    def __init__(self) -> None:
        self._start = _Said(None, None)
        self._ends: dict[str, _Said] = {}
        self._kept = 0

    def __len__(self) -> int:
        """Count the messages that are kept."""
        return self._kept

    def add(self, response_id: str, messages: Iterable[Message]) -> None:
        """Keep a conversation that ends in a response."""
        said = self._start
        for message in messages:
            further = said.further.get(message)
            if further is None:
                further = said.further[message] = _Said(message, said)
                self._kept += 1
            said = further
        self._ends[response_id] = said

    def find(self, response_id: str) -> tuple[Message, ...] | None:
        """Put together what was said up to and including a response; None if it is not known."""
        said = self._ends.get(response_id)
        if said is None:
            return None
        messages: list[Message] = []
        while said.message is not None and said.before is not None:
            messages.append(said.message)
            said = said.before
        return tuple(reversed(messages))


@dataclass(slots=True, eq=False)
class _Said:
    """A message after the messages before it; the start has neither."""

    message: Message | None
    before: _Said | None
    further: dict[Message, _Said] = field(default_factory=dict)
