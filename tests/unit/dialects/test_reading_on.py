"""What a request shares with an earlier one is not read again, and that changes nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.dialects import Earlier, ReadsOn, load
from polar.errors import BadRequest

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "u"},
    {"role": "user", "content": [{"type": "text", "text": "u"}]},
    {"role": "assistant", "content": "a"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "r", "tool_call_id": "c"},
]


def text(value: str, **more) -> dict:
    return {"type": "text", "text": value, **more}


def used(value, call_id: str = "c") -> dict:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {"x": value}}


LOADS = [{"type": "tool_reference", "tool_name": "late"}]
RESULT = {"type": "tool_result", "tool_use_id": "c"}
ANTHROPIC = [
    {"role": "user", "content": "u"},
    {"role": "user", "content": [text("u")]},
    {"role": "user", "content": [text("u", cache_control={"type": "ephemeral"})]},
    {"role": "user", "content": [{**RESULT, "content": "r"}, text("u")]},
    {"role": "user", "content": [{**RESULT, "content": LOADS}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, used(1)]},
    {"role": "assistant", "content": [used(1), used(2, "d")]},
    {"role": "assistant", "content": [used(True)]},
]
RESPONSES = [
    {"role": "user", "content": "u"},
    {"role": "developer", "content": [{"type": "input_text", "text": "u"}]},
    {"type": "message", "role": "assistant", "content": "a"},
    {"type": "message", "role": "assistant", "content": "b", "id": "msg_one_0"},
    {"type": "reasoning", "content": [{"text": "t"}], "id": "rs_one_0"},
    {"type": "reasoning", "summary": [{"text": "t"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_one_1"},
    {"type": "function_call", "call_id": "d", "name": "f", "arguments": "{}"},
    {"type": "custom_tool_call", "call_id": "e", "name": "g", "input": "x", "id": "ctc_two_1"},
    {"type": "function_call_output", "call_id": "c", "output": "r"},
    {
        "type": "additional_tools",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    },
]


def called(value, **more) -> dict:
    return {"functionCall": {"name": "f", "args": {"x": value}, **more}}


def answered(**more) -> dict:
    return {"functionResponse": {"name": "f", "response": {"output": "r"}, **more}}


GOOGLE = [
    {"role": "user", "parts": [{"text": "u"}]},
    {"role": "user", "parts": [answered(), {"text": "u"}, answered(id="c")]},
    {"role": "function", "parts": [answered(id="i")]},
    {"role": "model", "parts": [{"text": "a"}]},
    {"role": "model", "parts": [{"text": "t", "thought": True}, called(1)]},
    {"role": "model", "parts": [called(True, id="i"), called(2)]},
]
LATE = {"name": "late", "input_schema": {"type": "object"}, "defer_loading": True}
BODIES = {
    "openai_chat": lambda said: {"model": "m", "messages": said},
    "anthropic_messages": lambda said: {
        "model": "m",
        "max_tokens": 9,
        "messages": [*said, {"role": "user", "content": "go on"}],
        "tools": [LATE],
    },
    "openai_responses": lambda said: {"model": "m", "input": said},
    "google_generate": lambda said: {"contents": said},
}
SAID = {
    "openai_chat": CHAT,
    "anthropic_messages": ANTHROPIC,
    "openai_responses": RESPONSES,
    "google_generate": GOOGLE,
}
PARAMS = {"google_generate": {"model": "m", "method": "generateContent"}}
REFUSED = {
    "openai_chat": ({"role": "nobody", "content": "n"}, "messages[2].role"),
    "anthropic_messages": ({"role": "nobody", "content": "n"}, "messages[2].role"),
    "openai_responses": ({"role": "nobody", "content": "n"}, "input[2].role"),
    "google_generate": ({"role": "nobody", "parts": []}, "contents[2].role"),
}


def body(name: str, said) -> bytes:
    return json.dumps(BODIES[name](said)).encode()


def read(name: str, said, earlier: Earlier | None = None):
    """Read a request, or say how it is refused."""
    dialect = load(name)
    assert isinstance(dialect, ReadsOn)
    params = PARAMS.get(name, {})
    try:
        if earlier is None:
            return dialect.parse(body(name, said), params)
        return dialect.parse_on(body(name, said), params, earlier)
    except BadRequest as error:
        return str(error)


@st.composite
def conversations(draw, name: str):
    """Requests that mostly go on from one another, and sometimes change what was said."""
    items = st.lists(st.sampled_from(SAID[name]), min_size=1, max_size=5)
    requests = [draw(items)]
    for _ in range(draw(st.integers(0, 5))):
        kept = draw(st.integers(0, len(requests[-1]))) if draw(st.booleans()) else None
        requests.append([*requests[-1][:kept], *draw(items)])
    return requests


@pytest.mark.parametrize("name", SAID)
@given(data=st.data())
def test_every_request_is_read_as_if_it_were_the_first(name, data):
    earlier = Earlier()
    for said in data.draw(conversations(name)):
        # As text, in which 1 and true differ as they do to the model.
        assert repr(read(name, said, earlier)) == repr(read(name, said))


@pytest.mark.parametrize("name", SAID)
def test_what_was_read_before_is_the_same_object_in_each_of_several_conversations(name):
    earlier = Earlier()
    models = ("assistant", "model")
    user = next(each for each in SAID[name] if each["role"] == "user")
    assistant = next(each for each in SAID[name] if each.get("role") in models)
    openings = [[json.loads(json.dumps(user).replace('"u"', f'"{n}"'))] for n in range(4)]
    first = [read(name, [*each, assistant, user], earlier).messages for each in openings]
    longer = [[*each, assistant, user, assistant, user] for each in openings]
    second = [read(name, said, earlier).messages for said in longer]
    assert all(after[0] is before[0] for before, after in zip(first, second, strict=True))


@pytest.mark.parametrize("name", SAID)
def test_a_refusal_names_the_place_in_the_whole_request(name):
    dialect, earlier = load(name), Earlier()
    good = [SAID[name][0], SAID[name][3]]
    bad, where = REFUSED[name]
    read(name, good, earlier)
    with pytest.raises(BadRequest) as refused:
        dialect.parse_on(body(name, [*good, bad]), PARAMS.get(name, {}), earlier)
    assert refused.value.where == where
