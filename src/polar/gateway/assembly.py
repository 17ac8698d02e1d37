"""Sampled ids to what the harness is given: deltas, cut at the first stop string."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from polar.gateway.stops import StopFilter
from polar.rendering.base import IncrementalParser
from polar.types import (
    Delta,
    Message,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStart,
)

__all__ = ["Assembled", "Assembly"]


@dataclass(frozen=True, slots=True)
class Assembled:
    """A finished reply."""

    last_deltas: tuple[Delta, ...]
    """What had been held back until now."""
    given: Message
    """What the harness was given."""
    sampled: Message
    """What all sampled tokens say; differs where the reply was cut."""
    stop_string: str | None = None
    """The stop string at which the reply was cut, if one was found."""


class Assembly:
    """Makes one reply of the ids that are sampled for it.

    Args:
        parser: Parses the ids.
        stops: Strings in the content at which the reply is cut.
        most_tool_calls: The reply is cut before the tool call after these; absent: no limit.
    """

    def __init__(
        self,
        parser: IncrementalParser,
        stops: Sequence[str],
        *,
        most_tool_calls: int | None = None,
    ) -> None:
        self._parser = parser
        self._cuts = bool(stops) or most_tool_calls is not None
        self._filter = StopFilter(stops)
        self._most_tool_calls = most_tool_calls
        self._full = False
        self._given: list[Delta] = []
        self._told: list[Delta] = []

    @property
    def stopped(self) -> bool:
        """Whether the reply is cut, so that nothing more needs to be sampled."""
        return self._filter.stopped or self._full

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Take more sampled ids and return what the harness can be given."""
        return self._give(self._parser.feed(token_ids))

    def take(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Take what an engine that tells no ids says itself, and return what can be given."""
        self._told += deltas
        return self._give(list(deltas))

    def finish(self) -> Assembled:
        """End the reply."""
        last, sampled = self._parser.finish()
        if self._told:
            sampled = _message_of(self._told, sampled)
        given = self._give(last) + self._flush()
        message = _message_of(self._given, sampled) if self.stopped else sampled
        return Assembled(tuple(given), message, sampled, self._filter.found)

    def _give(self, deltas: list[Delta]) -> list[Delta]:
        if not self._cuts:
            return deltas
        given = list(self._cut(deltas))
        self._given += given
        return given

    def _cut(self, deltas: Iterable[Delta]) -> Iterator[Delta]:
        for delta in deltas:
            if self.stopped:
                return
            if isinstance(delta, ToolCallStart) and delta.index == self._most_tool_calls:
                self._full = True
                return
            if not isinstance(delta, TextDelta):
                yield from self._flush()  # no stop string spans a tool call
                yield delta
            elif text := self._filter.feed(delta.text):
                yield TextDelta(text)

    def _flush(self) -> list[Delta]:
        held = self._filter.finish()
        return [TextDelta(held)] if held else []


def _message_of(deltas: Iterable[Delta], sampled: Message) -> Message:
    """Add up deltas to the message that their receiver sees."""
    content, reasoning = "", ""
    calls: list[ToolCall] = []
    for delta in deltas:
        match delta:
            case TextDelta(text=text):
                content += text
            case ReasoningDelta(text=text):
                reasoning += text
            case ToolCallStart(id=call_id, name=name):
                calls.append(ToolCall(call_id, name, ""))
            case ToolArgumentsDelta(index=index, text=text):
                calls[index] = replace(calls[index], arguments=calls[index].arguments + text)
    return replace(sampled, content=content, reasoning=reasoning or None, tool_calls=tuple(calls))
