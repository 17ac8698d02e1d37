"""Replies as a model may sample them, and every way in which they may arrive."""

import json

import hypothesis.strategies as st

from polar.types import ReasoningDelta, TextDelta, ToolArgumentsDelta, ToolCall, ToolCallStart

texts = st.text(max_size=8) | st.sampled_from(["\u2028", "\u0085 \x1c", "\r\n\n", "data: x\n\n"])
_floats = st.floats(allow_nan=False, allow_infinity=False)


def arguments_with(integers):
    """JSON text of objects, with such integers in it."""
    scalars = st.none() | st.booleans() | integers | _floats | texts
    objects = st.dictionaries(texts, scalars | st.lists(scalars, max_size=2), max_size=3)
    return st.builds(json.dumps, objects, indent=st.none() | st.just(1), ensure_ascii=st.booleans())


not_objects = st.text(max_size=8).filter(lambda text: not text.startswith("{")) | st.sampled_from(
    ["", "[]", "null", '"x"', '{"a": 1, "b', '{"a": 1}}', "{", '{"a": NaN}', '{"a": "\\ud800"}']
)
"""What a model may write in place of it."""


def tool_calls(arguments):
    """Calls of tools of any name."""
    names = st.text("abc_", min_size=1)
    return st.builds(ToolCall, id=st.uuids().map(str), name=names, arguments=arguments)


def pieces(draw, text):
    """Cut a text anywhere."""
    while text:
        length = draw(st.integers(1, len(text)))
        yield text[:length]
        text = text[length:]


def call_deltas(draw, calls):
    """Cut calls into deltas."""
    for index, call in enumerate(calls):
        yield ToolCallStart(index, call.id, call.name)
        for piece in pieces(draw, call.arguments):
            yield ToolArgumentsDelta(index, piece)


def deltas_of(draw, message):
    """Cut a message into deltas: reasoning, text, calls."""
    yield from map(ReasoningDelta, pieces(draw, message.reasoning or ""))
    yield from map(TextDelta, pieces(draw, message.content))
    yield from call_deltas(draw, message.tool_calls)
