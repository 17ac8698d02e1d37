import json
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polar.rendering.hermes import call_text, parse_call, tools_section
from polar.rendering.parsing import Detokenizer, HermesParser, joined
from polar.types import (
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStart,
    ToolSpec,
)

STOP = 256
"""Tokens of these tests are single bytes, and one that ends the turn."""


def decode_bytes(ids):
    return bytes(ids).decode("utf-8", errors="replace")


def as_ids(text):
    return list(text.encode())


def new_parser(**options):
    numbers = count()
    return HermesParser(
        decode=decode_bytes,
        stop_token_ids=(STOP,),
        new_tool_call_id=lambda: f"call_{next(numbers)}",
        **options,
    )


def parse(ids, cuts=(), **options):
    parser = new_parser(**options)
    deltas, start = [], 0
    for cut in [*sorted(cuts), len(ids)]:
        deltas += parser.feed(ids[start:cut])
        start = max(start, cut)
    rest, message = parser.finish()
    return [*deltas, *rest], message


def added_up(deltas):
    """Content, reasoning and calls as a client puts them together from the stream."""
    content, reasoning, calls = "", "", []
    for delta in deltas:
        match delta:
            case TextDelta(text=text):
                content += text
            case ReasoningDelta(text=text):
                reasoning += text
            case ToolCallStart(index=index, id=call_id, name=name):
                assert index == len(calls)
                calls.append(ToolCall(call_id, name, ""))
            case ToolArgumentsDelta(index=index, text=text):
                before = calls[index]
                calls[index] = ToolCall(before.id, before.name, before.arguments + text)
    return content, reasoning or None, tuple(calls)


CALL = '<tool_call>\n{"name": "bash", "arguments": {"command":  "ls"}}\n</tool_call>'

pieces = st.one_of(
    st.sampled_from(
        [
            CALL,
            "<tool_call>",
            "</tool_call>",
            "<tool",
            "<think>",
            "</think>",
            "</thi",
            "<",
            "\n",
            " ",
            '<tool_call>{"name": 1}</tool_call>',
            '<tool_call>{"name": "x", "arguments": {',
            '"a": [{"b": "}\\\\\\""}]',
            "}",
            "}}",
            "}}</tool_call>",
            "{}",
            "é😀",
            "\ufffd",
        ]
    ),
    st.text(max_size=6),
)
replies = st.one_of(
    st.lists(pieces, max_size=8).map(lambda parts: as_ids("".join(parts))),
    st.lists(st.integers(0, STOP), max_size=30),
)


ways = st.fixed_dictionaries(
    {"thinks": st.booleans(), "starts_thinking": st.booleans(), "calls_flow": st.booleans()}
)


@given(replies, st.lists(st.integers(0, 60), max_size=6), ways)
@example(as_ids("a" + CALL + "\n" + CALL + " b"), list(range(60)), {})
@example(as_ids("a" + CALL + "\n" + CALL + " b"), list(range(60)), {"calls_flow": True})
@example(as_ids(CALL[:-14] + "]" + CALL[-14:]), list(range(90)), {"calls_flow": True})
@example(as_ids("x</think>\n\ny"), [1], {"thinks": True, "starts_thinking": True})
def test_deltas_add_up_to_the_message_whatever_the_chunks(ids, cuts, options):
    whole = parse(ids, **options)[1]
    deltas, message = parse(ids, [min(cut, len(ids)) for cut in cuts], **options)
    assert message == whole
    assert added_up(deltas) == (message.content, message.reasoning, message.tool_calls)


@given(st.text())
def test_text_without_tags_is_the_content_itself(text):
    ids = as_ids(text.replace("<", "("))
    assert parse(ids)[1].content == decode_bytes(ids)


@given(st.lists(st.one_of(st.binary(max_size=20), st.text(max_size=12).map(str.encode))))
def test_a_character_is_never_told_by_halves(parts):
    detokenizer = Detokenizer(decode_bytes)
    told = [detokenizer.push(list(part)) for part in parts]
    assert "".join([*told, detokenizer.flush()]) == decode_bytes(b"".join(parts))


def test_ids_that_came_together_are_not_all_decoded_again_with_each_further_one():
    decoded = []

    def decode(ids):
        decoded.append(len(ids))
        return decode_bytes(ids)

    detokenizer = Detokenizer(decode)
    detokenizer.push(list(b"a hundred bytes " * 8))
    decoded.clear()
    assert [detokenizer.push([byte]) for byte in b"abc"] == ["a", "b", "c"]
    assert max(decoded) < 8


def test_bytes_of_one_character_come_out_together():
    parser = new_parser()
    told = [parser.feed([byte]) for byte in "é😀.".encode()]
    assert [delta for deltas in told for delta in deltas] == [TextDelta(c) for c in "é😀."]


def test_the_end_of_turn_token_is_not_content():
    assert parse([*as_ids("done"), STOP])[1].content == "done"


def test_parallel_calls_keep_their_arguments_byte_for_byte():
    text = f'Look.\n{CALL}\n<tool_call>{{"arguments": {{"a":1.50, "b": "\\u00e9"}}, "name": "x"}}'
    deltas, message = parse(as_ids(text + "</tool_call>\n"))
    assert message.content == "Look."
    assert [(c.id, c.name, c.arguments) for c in message.tool_calls] == [
        ("call_0", "bash", '{"command":  "ls"}'),
        ("call_1", "x", '{"a":1.50, "b": "\\u00e9"}'),
    ]
    assert [d for d in deltas if isinstance(d, ToolCallStart)] == [
        ToolCallStart(0, "call_0", "bash"),
        ToolCallStart(1, "call_1", "x"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "bash", "arguments": {"command": "ls}',
        '{"name": "bash", "arguments": "ls"}',
        '{"name": "bash"}',
        '{"name": "", "arguments": {}}',
        '{"name": "a\\nb", "arguments": {}}',
        '{"name": "bash", "arguments": {"x": NaN}}',
        '{"name": "bash", "arguments": {}} and more',
        "[" * 100_000,
        "",
    ],
)
def test_a_malformed_call_stays_in_the_content_as_sampled(body):
    text = f"Hm.\n<tool_call>{body}</tool_call>"
    message = parse(as_ids(text))[1]
    assert (message.content, message.tool_calls) == (text, ())


@given(replies)
@example(as_ids("a" + CALL + "\n" + CALL + " b"))
@example(as_ids(CALL[:-14]))
def test_where_calls_flow_the_valid_ones_are_those_that_are_found_whole(ids):
    whole, flowing = parse(ids)[1], parse(ids, calls_flow=True)[1]
    sound = [call for call in flowing.tool_calls if is_object(call.arguments)]
    assert [(call.name, call.arguments) for call in sound] == [
        (call.name, call.arguments) for call in whole.tool_calls
    ]
    if len(sound) == len(flowing.tool_calls):
        assert flowing == whole


@given(replies)
@example(as_ids(CALL))
def test_arguments_that_flow_are_no_object_before_their_block_is_closed(ids):
    parser, arguments = new_parser(calls_flow=True), {}
    for number, token_id in enumerate(ids):
        for delta in parser.feed([token_id]):
            if isinstance(delta, ToolArgumentsDelta):
                arguments[delta.index] = arguments.get(delta.index, "") + delta.text
                closed = decode_bytes(ids[: number + 1]).endswith("</tool_call>")
                assert closed or not is_object(arguments[delta.index])


def is_object(text):
    try:
        return isinstance(json.loads(text, parse_constant=int), dict)
    except ValueError:
        return False


def test_arguments_flow_as_they_are_sampled():
    parser = new_parser(calls_flow=True)
    opening, arguments = '<tool_call>\n{"name": "bash", "arguments": ', '{"command": "é{\\""'
    assert parser.feed(as_ids(opening)) == []
    assert parser.feed(as_ids("{")) == [
        ToolCallStart(0, "call_0", "bash"),
        ToolArgumentsDelta(0, "{"),
    ]
    told = [delta for character in arguments[1:] for delta in parser.feed(as_ids(character))]
    assert told == [ToolArgumentsDelta(0, character) for character in arguments[1:]]
    assert parser.feed(as_ids("}}\n</tool_call")) == []
    assert parser.feed(as_ids(">")) == [ToolArgumentsDelta(0, "}")]


@pytest.mark.parametrize(
    ("block", "arguments", "content"),
    [
        ('{"name": "x", "arguments": {"command": "ls}</tool_call>', '{"command": "ls}', ""),
        ('{"name": "x", "arguments": {"a": NaN}}</tool_call>', '{"a": NaN', ""),
        ('{"name": "x", "arguments": {"a": 1}</tool_call>', '{"a": 1', ""),
        ('{"name": "x", "arguments": {"a": 1}}}</tool_call>', '{"a": 1', ""),
        ('{"name": "x", "arguments": {"a": 1}}\n', '{"a": 1}', ""),
        ('{"name": "x", "arguments": {"a": 1}', '{"a": 1', ""),
        ('{"name": "x", "arguments": {"a": "\\', '{"a": "\\', ""),
        ('{"name": "x", "arguments": {}} So be it.</tool_call>', "{", "So be it."),
        ('{"name": "x", "arguments": {}, "name": "y"}</tool_call>', "{", ', "name": "y"'),
        ('{"name": "x", "arguments": {"a": 1]]</tool_call>', '{"a": 1', "]]"),
    ],
)
def test_a_call_that_has_begun_and_proves_broken_keeps_arguments_that_are_no_object(
    block, arguments, content
):
    message = parse(as_ids(f"<tool_call>{block}"), calls_flow=True)[1]
    assert message.tool_calls == (ToolCall("call_0", "x", arguments),)
    assert message.content == content


@pytest.mark.parametrize(
    "opening",
    [
        '{"arguments": {"a": 1}, "name": "x"',
        '{"id": 1, "name": "x", "arguments": {"a": 1}',
        '{"name": "a\\nb", "arguments": {"a": 1}',
        '{"name": "", "arguments": {"a": 1}',
        '{"name": "' + "x" * 500 + '", "arguments": {"a": 1}',
    ],
)
def test_a_block_that_opens_in_another_way_is_held_until_it_is_whole(opening):
    parser = new_parser(calls_flow=True)
    ids = as_ids(f"<tool_call>{opening}")
    assert [delta for token_id in ids for delta in parser.feed([token_id])] == []
    block = decode_bytes(ids) + "}</tool_call>"
    assert parse(as_ids(block), calls_flow=True) == parse(as_ids(block))


@pytest.mark.parametrize("opening", ['{"name": "x", "arguments": {', '{"arguments": {', "["])
@pytest.mark.parametrize("calls_flow", [False, True])
def test_what_was_read_of_a_long_block_is_not_searched_again(opening, calls_flow):
    parser = new_parser(calls_flow=calls_flow)
    for byte in as_ids(f'<tool_call>{opening}"a": "' + "x<" * 2000):
        parser.feed([byte])
        assert len(parser._buffer) < len("</tool_call>")
    assert (parser._block.name is not None) is (calls_flow and "name" in opening)


def test_a_call_without_its_closing_tag_counts_when_its_json_is_whole():
    message = parse([*as_ids(CALL.removesuffix("\n</tool_call>")), STOP])[1]
    assert [call.name for call in message.tool_calls] == ["bash"]


def test_a_call_cut_in_the_middle_stays_in_the_content():
    cut = CALL[:40]
    message = parse(as_ids(cut))[1]
    assert (message.content, message.tool_calls) == (cut, ())


def test_white_space_next_to_calls_is_form_and_elsewhere_content():
    assert parse(as_ids(f"  a \n\n{CALL}\n\n{CALL}\n"))[1].content == "  a"
    assert parse(as_ids(" a \n"))[1].content == " a \n"


def test_reasoning_is_told_apart_where_the_model_thinks():
    text = "<think>\nLet me see.\n</think>\n\nYes."
    message = parse(as_ids(text), thinks=True)[1]
    assert (message.reasoning, message.content) == ("Let me see.", "Yes.")
    assert parse(as_ids(text))[1].content == text


def test_reasoning_that_the_prompt_opened_needs_no_tag():
    message = parse(as_ids("Hm.\n</think>\nYes."), thinks=True, starts_thinking=True)[1]
    assert (message.reasoning, message.content) == ("Hm.", "Yes.")


def test_reasoning_cut_by_length_is_no_content():
    message = parse(as_ids("<think>and so <tool_call>"), thinks=True)[1]
    assert (message.reasoning, message.content) == ("and so <tool_call>", "")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(), json_values, max_size=3), st.sampled_from([None, 1, 4]))
def test_a_written_call_is_read_back_with_the_same_bytes(arguments, indent):
    text = json.dumps(arguments, indent=indent)
    written = call_text(ToolCall("id", "bash", text))
    assert parse_call(written.removeprefix("<tool_call>").removesuffix("</tool_call>")) == (
        "bash",
        text,
    )


def test_of_equal_members_the_last_is_taken():
    assert parse_call('{"name": "x", "arguments": {}, "arguments": {"a": 1}}') == ("x", '{"a": 1}')


def test_each_tool_is_described_on_one_line():
    tools = [ToolSpec(name, "Does\nit.", {"type": "object"}) for name in ("a", "b")]
    lines = [line for line in tools_section(tools).splitlines() if line.startswith('{"name": "')]
    assert [json.loads(line)["name"] for line in lines[:2]] == ["a", "b"]


DELTAS = st.one_of(
    st.builds(TextDelta, st.text(max_size=2)),
    st.builds(ReasoningDelta, st.text(max_size=2)),
    st.builds(ToolCallStart, st.integers(0, 1), st.just("id"), st.just("name")),
    st.builds(ToolArgumentsDelta, st.integers(0, 1), st.text(max_size=2)),
)


def pieces(deltas):
    """Take deltas apart to single characters, each with what it goes on with."""
    for delta in deltas:
        if isinstance(delta, ToolCallStart):
            yield delta
        else:
            yield from (replace(delta, text=character) for character in delta.text)


@given(st.lists(DELTAS))
def test_joined_deltas_say_the_same_in_the_same_order(deltas):
    whole = joined(deltas)
    assert list(pieces(whole)) == list(pieces(deltas))
    assert len(joined(whole)) == len(whole)
