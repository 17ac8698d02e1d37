"""What harnesses send, and what becomes of it."""

import json

import pytest

from polar.dialects import load
from polar.errors import BadRequest
from polar.types import Forced, Message, Sampling, ToolCall, ToolSpec

DIALECT = load("openai_chat")
FUNCTIONS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]


def parse(messages=({"role": "user", "content": "hi"},), **fields):
    return DIALECT.parse(json.dumps({"model": "m", "messages": messages, **fields}).encode())


def parse_one(message) -> Message:
    (parsed,) = parse([message]).messages
    return parsed


def test_a_plain_request_takes_the_providers_defaults():
    chat = parse()
    assert chat.messages == (Message("user", "hi"),)
    assert chat.sampling == Sampling()
    assert (chat.model, chat.stream, chat.tools) == ("m", False, ())


def test_all_sampling_fields_are_read():
    chat = parse(
        temperature=0,
        top_p=0.5,
        top_k=3,
        max_tokens=10,
        max_completion_tokens=5,
        stop=["a", "b"],
        seed=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert chat.sampling == Sampling(0.0, 0.5, 3, 5, ("a", "b"), (), 4)
    assert (chat.stream, chat.include_usage) == (True, True)
    assert parse(max_tokens=10).sampling.max_tokens == 10
    assert parse(stop="x").sampling.stop == ("x",)


@pytest.mark.parametrize(("sent", "role"), [("developer", "system"), ("system", "system")])
def test_developers_speak_as_the_system(sent, role):
    assert parse_one({"role": sent, "content": "be good"}) == Message(role, "be good")


def test_text_parts_are_joined_as_they_are():
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert parse_one({"role": "user", "content": parts}).content == "a b"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": [], "tool_calls": []},
        {"role": "assistant", "tool_calls": None, "function_call": None, "audio": None},
        {"role": "assistant", "annotations": [], "provider_specific_fields": {"refusal": None}},
    ],
)
def test_an_empty_assistant_turn_is_empty(message):
    assert parse_one(message) == Message("assistant", "")


@pytest.mark.parametrize("content", [None, "", []])
def test_a_refusal_is_what_was_said_where_there_is_no_content(content):
    message = {"role": "assistant", "content": content, "refusal": "no"}
    assert parse_one(message) == Message("assistant", "no")


def test_marks_that_other_providers_leave_in_the_history_change_nothing():
    marks = {"cache_control": {"type": "ephemeral"}, "provider_specific_fields": {"a": 1}}
    call = {"id": "c1", "index": 0, "type": "function", "extra_content": {"google": {}}}
    function = {"name": "f", "arguments": "{}"}
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        "reasoning_content": "why",
        "reasoning_details": [{"type": "reasoning.text", "text": "why"}],
        "tool_calls": [{**call, "function": function}],
        **marks,
    }
    expected = Message("assistant", "x", "why", (ToolCall("c1", "f", "{}"),))
    assert parse_one(message) == expected


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_in_the_history_is_kept(field):
    message = {"role": "assistant", "content": "x", field: "because"}
    assert parse_one(message).reasoning == "because"


def test_a_tool_turn_is_read_whole():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    chat = parse(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "ok"}]},
        ]
    )
    assert chat.messages[1].tool_calls == (ToolCall("c1", "f", '{"a":1}'),)
    assert chat.messages[2] == Message("tool", "ok", tool_call_id="c1")


def test_tools_are_offered_unless_the_choice_is_none():
    tool = {"type": "function", "function": {"name": "f", "description": "d", "strict": True}}
    assert parse(tools=[tool], tool_choice="auto").tools == (ToolSpec("f", "d", {}),)
    assert parse(tools=[tool], tool_choice="none").tools == ()


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("auto", None),
        ("required", Forced(None, "tool_choice")),
        ({"type": "function", "function": {"name": "g"}}, Forced("g", "tool_choice")),
        (allowed("auto", "f", "g"), None),
        (allowed("required", "f"), Forced("f", "tool_choice.allowed_tools.tools")),
        (allowed("required", "g", "f"), Forced(None, "tool_choice.allowed_tools.tools")),
    ],
)
def test_a_choice_of_tools_forces_a_call_of_one_or_of_any(choice, forced):
    chat = parse(tools=FUNCTIONS, tool_choice=choice)
    assert chat.forced == forced
    assert [tool.name for tool in chat.tools] == ["f", "g"]


@pytest.mark.parametrize(
    ("choice", "where"),
    [
        ({"type": "function", "function": {"name": "h"}}, "tool_choice"),
        ({"type": "function", "function": {"name": "f", "x": 1}}, "tool_choice.function.x"),
        ({"type": "function", "function": {"name": "f"}, "x": 1}, "tool_choice.x"),
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "custom", "custom": {"name": "f"}}, "tool_choice.type"),
        (allowed("auto", "f"), "tool_choice.allowed_tools.tools"),
        (allowed("required", "f", "h"), "tool_choice.allowed_tools.tools"),
        (allowed("never", "f", "g"), "tool_choice.allowed_tools.mode"),
    ],
)
def test_a_choice_of_tools_that_cannot_be_kept_to_is_refused_by_name(choice, where):
    with pytest.raises(BadRequest) as caught:
        parse(tools=FUNCTIONS, tool_choice=choice)
    assert caught.value.where == where


def test_some_of_several_tools_cannot_be_forced():
    three = [*FUNCTIONS, {"type": "function", "function": {"name": "h"}}]
    with pytest.raises(BadRequest, match="only some of the tools"):
        parse(tools=three, tool_choice=allowed("required", "f", "h"))


def test_what_changes_nothing_is_taken_silently():
    parse(
        user="u",
        metadata={"a": "b"},
        store=False,
        prompt_cache_key="k",
        reasoning_effort="high",
        parallel_tool_calls=True,
        n=1,
        logprobs=False,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        response_format={"type": "text"},
        service_tier=None,
        functions=None,
        some_future_field=None,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("presence_penalty", 0.5),
        ("logit_bias", {"3": 1}),
        ("response_format", {"type": "json_object"}),
        ("parallel_tool_calls", "no"),
        ("functions", [{"name": "f"}]),
        ("tool_choice", "required"),
        ("tool_choice", "always"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("min_p", 0.1),
        ("temperature", 3),
        ("temperature", "hot"),
        ("top_p", True),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("stop", [""]),
        ("stop", 3),
        ("stream", "yes"),
        ("stream_options", []),
        ("some_future_field", 1),
        ("messages", []),
        ("messages", {}),
        ("model", None),
    ],
)
def test_what_is_wrong_or_would_change_the_sampling_is_refused_by_name(field, value):
    with pytest.raises(BadRequest) as caught:
        parse(**{field: value}) if field != "messages" else parse(value)
    assert caught.value.where == field


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"role": "function", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
            "messages[0].content[0].type",
        ),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[0].function_call"),
        ({"role": "user", "content": "x", "images": ["u"]}, "messages[0].images"),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "image": "u"}]},
            "messages[0].content[0].image",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "custom": {"name": "f"}}]},
            "messages[0].tool_calls[0].custom",
        ),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
            "messages[0].tool_calls[0].id",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]},
            "messages[0].tool_calls[0].type",
        ),
        ("hello", "messages[0]"),
    ],
)
def test_a_wrong_message_is_refused_where_it_is_wrong(message, where):
    with pytest.raises(BadRequest) as caught:
        parse([message])
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("tool", "where"),
    [
        ({"type": "web_search"}, "tools[0].type"),
        ({"type": "function"}, "tools[0].function"),
        ({"type": "function", "function": {"name": "f"}, "grammar": "x"}, "tools[0].grammar"),
        (
            {"type": "function", "function": {"name": "f", "returns": {}}},
            "tools[0].function.returns",
        ),
        ({"type": "function", "function": {}}, "tools[0].function.name"),
        (
            {"type": "function", "function": {"name": "f", "parameters": []}},
            "tools[0].function.parameters",
        ),
    ],
)
def test_a_wrong_tool_is_refused_where_it_is_wrong(tool, where):
    with pytest.raises(BadRequest) as caught:
        parse(tools=[tool])
    assert caught.value.where == where


def test_an_option_of_streams_that_is_not_known_is_refused_by_name():
    with pytest.raises(BadRequest) as caught:
        parse(stream=True, stream_options={"include_usage": True, "include_logits": True})
    assert caught.value.where == "stream_options.include_logits"


def test_one_call_at_a_time_is_heard():
    """litellm#18201: the wish for no parallel tool calls was lost on the way."""
    assert not parse(parallel_tool_calls=False).parallel_tool_calls
    assert parse().parallel_tool_calls
