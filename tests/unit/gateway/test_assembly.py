"""Deltas of a reply, cut at stop strings."""

from collections.abc import Sequence

from polar.gateway.assembly import Assembly
from polar.types import (
    Delta,
    Message,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStart,
)


class DeltaParser:
    """Takes positions in a list of deltas for token ids."""

    def __init__(self, deltas: Sequence[Delta], message: Message) -> None:
        self._deltas = deltas
        self._message = message

    def feed(self, token_ids):
        return [self._deltas[token_id] for token_id in token_ids]

    def finish(self):
        return [], self._message


def assemble(deltas, message, *stops):
    assembly = Assembly(DeltaParser(deltas, message), stops)
    given = [delta for number in range(len(deltas)) for delta in assembly.feed([number])]
    return assembly, given, assembly.finish()


def test_without_stop_strings_everything_passes_at_once():
    deltas = [ReasoningDelta("r"), TextDelta("a"), ToolCallStart(0, "c", "f")]
    message = Message("assistant", "a", "r", (ToolCall("c", "f", ""),))
    assembly, given, assembled = assemble(deltas, message)
    assert given == deltas
    assert assembled.given is message
    assert assembled.last_deltas == ()
    assert not assembly.stopped


def test_a_cut_reply_is_what_was_given_and_remembers_what_was_sampled():
    deltas = [ReasoningDelta("r"), TextDelta("one S"), TextDelta("TOP two")]
    message = Message("assistant", "one STOP two", "r")
    assembly, given, assembled = assemble(deltas, message, "STOP")
    assert given == [ReasoningDelta("r"), TextDelta("one ")]
    assert assembly.stopped
    assert assembled.given == Message("assistant", "one ", "r")
    assert assembled.sampled == message


def test_a_tool_call_lets_go_of_text_that_was_held_back():
    deltas = [TextDelta("aS"), ToolCallStart(0, "c", "f"), ToolArgumentsDelta(0, "{}")]
    message = Message("assistant", "aS", None, (ToolCall("c", "f", "{}"),))
    _, given, assembled = assemble(deltas, message, "STOP")
    assert given == [TextDelta("a"), TextDelta("S"), *deltas[1:]]
    assert assembled.given == message


def test_calls_before_a_stop_string_stay_and_those_after_it_go():
    calls = [
        ToolCallStart(0, "c", "f"),
        ToolArgumentsDelta(0, "{"),
        ToolArgumentsDelta(0, "}"),
        TextDelta("STOP"),
        ToolCallStart(1, "d", "g"),
    ]
    sampled = (ToolCall("c", "f", "{}"), ToolCall("d", "g", ""))
    _, given, assembled = assemble(calls, Message("assistant", "STOP", None, sampled), "STOP")
    assert given == calls[:3]
    assert assembled.given.tool_calls == sampled[:1]


def test_what_was_held_back_comes_with_the_end():
    _, given, assembled = assemble([TextDelta("a ST")], Message("assistant", "a ST"), "STOP")
    assert given == [TextDelta("a ")]
    assert assembled.last_deltas == (TextDelta("ST"),)
    assert assembled.given == Message("assistant", "a ST")


def test_where_only_one_tool_call_is_allowed_the_reply_is_cut_before_the_second():
    deltas = [
        TextDelta("a"),
        ToolCallStart(0, "c", "f"),
        ToolArgumentsDelta(0, "{}"),
        ToolCallStart(1, "d", "g"),
        ToolArgumentsDelta(1, "{}"),
    ]
    message = Message("assistant", "a", None, (ToolCall("c", "f", "{}"), ToolCall("d", "g", "{}")))
    assembly = Assembly(DeltaParser(deltas, message), (), most_tool_calls=1)
    given = [delta for number in range(len(deltas)) for delta in assembly.feed([number])]
    assembled = assembly.finish()
    assert given == deltas[:3]
    assert assembly.stopped
    assert assembled.given.tool_calls == (ToolCall("c", "f", "{}"),)
    assert assembled.sampled == message
    assert assembled.stop_string is None
