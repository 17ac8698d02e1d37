"""Replies of families that are parsed when they are whole, and flow meanwhile."""

from dataclasses import replace
from functools import cache
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polar.gateway.assembly import Assembly
from polar.rendering import family
from polar.rendering.family import FamilyRenderer, WholeReplyParser
from polar.rendering.sections import SectionParser
from polar.rendering.tiny import tiny_tokenizer
from polar.rendering.tokenizer import encode
from polar.types import ReasoningDelta, TextDelta, ToolArgumentsDelta, ToolCallStart, ToolSpec

THINK = ("<think>", "</think>")
TAGS = (*THINK, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
ARGUMENTS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
ROLES = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
BAR = "\uff5c"
DEEPSEEK = (
    *(f"tool▁{name}▁begin" for name in ("call", "calls", "output", "outputs")),
    *(f"tool▁{name}▁end" for name in ("call", "calls", "output", "outputs")),
    *("tool▁sep", "begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant"),
)
MINIMAX = ("]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>")
HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>")
MARKS = {
    "deepseek-v3": tuple(f"<{BAR}{name}{BAR}>" for name in DEEPSEEK),
    **dict.fromkeys(("glm-4.5", "glm-5", "glm-5.1", "glm-5.3"), (*TAGS, *ROLES, *ARGUMENTS)),
    "llama-3": (*HEADERS, "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|python_tag|>"),
    "minimax-m2": (*THINK, *MINIMAX),
    **dict.fromkeys(("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), TAGS),
    **dict.fromkeys(("qwen3-vl", "qwen3.5", "qwen3.6", "qwen3.8"), (*TAGS, *VISION)),
}
TEXTS = (
    *("Hello there. ", "\n\n", " ", "é😀", "{", "}", "<", "[", "function", "bash"),
    '{"name": "bash", "parameters": {"command": "ls"}}',
    '<invoke name="bash"><parameter name="command">ls</parameter></invoke>',
    "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>",
    "bash\n```json\n{}\n```",
)
STRIPS = {"llama-3"}
"""Families whose package takes marks out of a reply even where their text is spelled."""
TOOL = ToolSpec("bash", "Runs.", {"type": "object", "properties": {"command": {"type": "string"}}})


@cache
def tokenizer_of(name):
    return tiny_tokenizer(special_tokens=MARKS[name])


@cache
def renderer_of(name):
    return FamilyRenderer(tokenizer_of(name), name)


def parser_of(name):
    numbers = count()
    return renderer_of(name).parser((TOOL,), new_tool_call_id=lambda: f"call_{next(numbers)}")


def whole_of(name, ids):
    """Parse a whole reply, as the package does; white space at the beginnings is form."""
    numbers = count()
    parse = parser_of(name)._parse
    parser = WholeReplyParser(parse, renderer_of(name).decode, lambda: f"call_{next(numbers)}")
    parser.feed(ids)
    message = parser.finish()[1]
    reasoning = (message.reasoning or "").lstrip() or None
    return replace(message, content=message.content.lstrip(), reasoning=reasoning)


def spells_a_mark(name, ids):
    """Say whether the text of ids that are no marks reads like one; then it flows as it is."""
    marks = {encode(tokenizer_of(name), mark)[0] for mark in MARKS[name]}
    text = renderer_of(name).decode([token for token in ids if token not in marks])
    return any(mark in text for mark in MARKS[name])


@st.composite
def sampled(draw):
    """Any tokens of a family: marks, texts, marks that are spelled, and halves of characters."""
    name = draw(st.sampled_from(sorted(MARKS)))
    said = st.sampled_from((*MARKS[name], *TEXTS))
    ids = []
    for text, spelled in draw(st.lists(st.tuples(said, st.integers(0, 3).map(bool)), max_size=10)):
        parts = [text] if spelled else list(text)
        ids += [token for part in parts for token in encode(tokenizer_of(name), part)]
    return name, [*ids, *draw(st.lists(st.integers(0, 255), max_size=1))]


@example(("llama-3", [*map(ord, "<|begin_of_text|>")]), [])
@given(sampled(), st.lists(st.integers(1, 9), max_size=12))
@settings(max_examples=300, deadline=None)
def test_what_flows_adds_up_to_the_whole_reply_of_every_family(sample, sizes):
    name, ids = sample
    parser, rest, deltas = parser_of(name), list(ids), []
    assert isinstance(parser, SectionParser)
    while rest:
        size = sizes.pop() if sizes else 1
        deltas += parser.feed(rest[:size])
        del rest[:size]
    last, message = parser.finish()
    if name not in STRIPS or not spells_a_mark(name, ids):
        assert message == whole_of(name, ids)
    told = {kind: "" for kind in (TextDelta, ReasoningDelta, ToolArgumentsDelta)}
    for delta in (*deltas, *last):
        if not isinstance(delta, ToolCallStart):
            told[type(delta)] += delta.text
    assert told[TextDelta] == message.content
    assert told[ReasoningDelta] == (message.reasoning or "")
    assert told[ToolArgumentsDelta] == "".join(call.arguments for call in message.tool_calls)


def test_every_family_that_flows_is_tested_here():
    assert set(family._OPENERS) == set(MARKS)


@pytest.mark.parametrize("name", sorted(MARKS))
def test_text_flows_word_by_word(name):
    text = "Let me see. And so on."
    parser, told = parser_of(name), []
    for word in text.split(" "):
        deltas = parser.feed(encode(tokenizer_of(name), f" {word}"))
        told += ["".join(delta.text for delta in deltas)]
    assert told == ["Let", " me", " see.", " And", " so", " on."]


def test_reasoning_and_content_flow_and_a_call_comes_at_the_end():
    parser, tokenizer = parser_of("qwen3.5"), tokenizer_of("qwen3.5")
    assert parser.feed(encode(tokenizer, "So.\n")) == [ReasoningDelta("So.")]
    assert parser.feed(encode(tokenizer, "</think>\n\nLook:\n")) == [TextDelta("Look:")]
    call = "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n"
    assert parser.feed(encode(tokenizer, call + "</tool_call>")) == []
    deltas, message = parser.finish()
    assert deltas == [
        ToolCallStart(0, "call_0", "bash"),
        ToolArgumentsDelta(0, '{"command": "ls"}'),
    ]
    assert (message.reasoning, message.content) == ("So.", "Look:")


def test_content_that_may_be_a_call_without_a_mark_is_held():
    ids = encode(tokenizer_of("llama-3"), ' {"name": "bash", "parameters": {"command": "ls"}}')
    parser = parser_of("llama-3")
    assert parser.feed(ids) == []
    assert [call.name for call in parser.finish()[1].tool_calls] == ["bash"]


def test_a_stop_string_ends_the_sampling_where_it_is_found():
    assembly = Assembly(parser_of("llama-3"), ["END"])
    assembly.feed(encode(tokenizer_of("llama-3"), "So it END and"))
    assert assembly.stopped


def test_a_reply_of_nothing_but_marks_is_parsed_a_limited_number_of_times():
    parser, parsed = parser_of("qwen3.5"), []
    parse = parser._parse
    parser._parse = lambda ids: parsed.append(len(ids)) or parse(ids)
    ids = encode(tokenizer_of("qwen3.5"), "</think>a<tool_call>b</tool_call>c" * 200)
    parser.feed(ids)
    assert len(parsed) < 100
    assert parser.finish()[1] == whole_of("qwen3.5", ids)


def test_what_was_told_stays_where_the_whole_reply_says_otherwise():
    parser = parser_of("qwen3.5")
    parser._parse = lambda ids: type(
        "Parsed", (), {"reasoning_content": None, "content": "polarprobe"}
    )
    told = parser.feed(encode(tokenizer_of("qwen3.5"), "</think>"))
    told += parser.feed(encode(tokenizer_of("qwen3.5"), "told"))
    parser._whole = WholeReplyParser(
        lambda ids: type(
            "Parsed", (), {"reasoning_content": None, "content": "x", "tool_calls": []}
        ),
        parser._decode,
        str,
    )
    last, message = parser.finish()
    assert [*told, *last] == [TextDelta("told")]
    assert message.content == "told"
