"""What a request shares with an earlier one is not read again, and that changes nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.dialects import Earlier, ReadsOn, load
from polar.errors import BadRequest

DIALECT = load("openai_chat")
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES = st.sampled_from(
    [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "r", "tool_call_id": "c"},
    ]
)


def body(messages) -> bytes:
    return json.dumps({"model": "m", "messages": messages}).encode()


@given(st.lists(st.lists(MESSAGES, min_size=1, max_size=6), max_size=8))
def test_every_request_is_read_as_if_it_were_the_first(requests):
    assert isinstance(DIALECT, ReadsOn)
    earlier = Earlier()
    for messages in requests:
        assert DIALECT.parse_on(body(messages), {}, earlier) == DIALECT.parse(body(messages))


def test_what_was_read_before_is_the_same_object_in_each_of_several_conversations():
    earlier = Earlier()
    openings = [[{"role": "user", "content": f"u{number}"}] for number in range(4)]
    first = [DIALECT.parse_on(body(opening), {}, earlier).messages for opening in openings]
    longer = [[*opening, {"role": "assistant", "content": "a"}] for opening in openings]
    second = [DIALECT.parse_on(body(messages), {}, earlier).messages for messages in longer]
    assert all(after[0] is before[0] for before, after in zip(first, second, strict=True))


def test_a_refusal_names_the_place_in_the_whole_request():
    earlier = Earlier()
    good = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    DIALECT.parse_on(body(good), {}, earlier)
    with pytest.raises(BadRequest) as refused:
        DIALECT.parse_on(body([*good, {"role": "nobody", "content": "n"}]), {}, earlier)
    assert refused.value.where == "messages[2].role"
