"""What harnesses that speak Anthropic Messages send, and what becomes of it."""

import json
import re
from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given

from polar.dialects import load
from polar.errors import BadRequest
from polar.types import Forced, Message, Sampling, ToolCall, ToolSpec

DIALECT = load("anthropic_messages")
HI = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}


def parse(messages=(HI,), **fields):
    body = {"model": "m", "max_tokens": 10, "messages": messages, **fields}
    return DIALECT.parse(json.dumps(body).encode())


def parse_one(message) -> Message:
    (parsed, _) = parse([message, HI]).messages
    return parsed


def text(value, **fields):
    return {"type": "text", "text": value, **fields}


def result(content, **fields):
    return {"type": "tool_result", "tool_use_id": "c1", "content": content, **fields}


def called(name="f", arguments=None, **fields):
    return {"type": "tool_use", "id": "c1", "name": name, "input": arguments or {}, **fields}


@pytest.mark.parametrize(
    ("method", "path", "serves"),
    [("POST", "/v1/messages", "chat"), ("POST", "/v1/messages/count_tokens", "count")],
)
def test_it_answers_its_paths_and_takes_models_for_its_own_clients_alone(method, path, serves):
    (route,) = [route for route in DIALECT.routes if re.fullmatch(route.pattern, path)]
    assert (route.method, route.serves, route.header) == (method, serves, None)
    models = [route for route in DIALECT.routes if re.fullmatch(route.pattern, "/v1/models")]
    assert [route.header for route in models] == ["anthropic-version"]


def test_a_plain_request_takes_the_providers_defaults():
    chat = parse()
    assert chat.messages == (Message("user", "hi"),)
    assert chat.sampling == Sampling(max_tokens=10)
    assert (chat.model, chat.stream, chat.tools) == ("m", False, ())
    assert chat.parallel_tool_calls


def test_all_sampling_fields_are_read():
    chat = parse(temperature=0, top_p=0.5, top_k=3, stop_sequences=["a", "b"], stream=True)
    assert chat.sampling == Sampling(0.0, 0.5, 3, 10, ("a", "b"))
    assert chat.stream


def test_a_prompt_is_counted_without_a_limit_for_the_reply():
    body = json.dumps({"model": "m", "messages": [HI, {"role": "assistant", "content": "x"}]})
    (route,) = [route for route in DIALECT.routes if route.serves == "count"]
    params = re.fullmatch(route.pattern, "/v1/messages/count_tokens").groupdict()
    chat = DIALECT.parse(body.encode(), params)
    assert chat.messages == (Message("user", "hi"), Message("assistant", "x"))
    with pytest.raises(BadRequest) as caught:
        DIALECT.parse(body.encode())
    assert caught.value.where in ("messages", "max_tokens")


@pytest.mark.parametrize("system", ["be good", [text("be "), text("good", cache_control={})]])
def test_the_system_prompt_goes_first(system):
    assert parse(system=system).messages == (Message("system", "be good"), Message("user", "hi"))


@pytest.mark.parametrize("system", [None, "", [], [text("")]])
def test_an_empty_system_prompt_is_none(system):
    assert parse(system=system).messages == (Message("user", "hi"),)


@pytest.mark.parametrize("content", ["now", [text("now", cache_control={"type": "ephemeral"})]])
def test_the_system_may_speak_later_and_moving_cache_marks_change_nothing(content):
    """Claude Code does both: the message turns from blocks into a string in the next request."""
    messages = parse([HI, {"role": "system", "content": content}]).messages
    assert messages == (Message("user", "hi"), Message("system", "now"))


@pytest.mark.parametrize("content", ["a b", [text("a "), text(""), text("b", citations=[])]])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_text_blocks_are_joined_as_they_are(role, content):
    assert parse_one({"role": role, "content": content}) == Message(role, "a b")


@pytest.mark.parametrize("content", ["", [], None, [text("")]])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_an_empty_turn_is_empty(role, content):
    assert parse_one({"role": role, "content": content}) == Message(role, "")


@pytest.mark.parametrize("content", ["", [], [text("")]])
def test_an_empty_last_turn_of_the_assistant_asks_for_nothing(content):
    assert parse([HI, {"role": "assistant", "content": content}]) == parse()


def test_a_turn_of_the_assistant_is_read_whole():
    blocks = [
        {"type": "thinking", "thinking": "be", "signature": "s"},
        {"type": "thinking", "thinking": "cause", "signature": "t"},
        text("I "),
        called("f", {"a": 1, "ä": [None]}, cache_control=None),
        text("call"),
    ]
    call = ToolCall("c1", "f", '{"a": 1, "ä": [null]}')
    expected = Message("assistant", "I call", "because", (call,))
    assert parse_one({"role": "assistant", "content": blocks}) == expected


def test_a_call_that_was_given_as_an_invalid_one_is_read_as_it_was_sampled():
    block = called("invalid_tool_input", {"name": "bash", "arguments": '{"a'})
    message = parse_one({"role": "assistant", "content": [block]})
    assert message.tool_calls == (ToolCall("c1", "bash", '{"a'),)


@pytest.mark.parametrize("content", ["ok", [text("o"), text("k")]])
def test_results_of_tools_are_turns_of_their_own_before_the_users_text(content):
    blocks = [result(content), {**result(None), "tool_use_id": "c2"}, text("and "), text("now?")]
    assert parse([{"role": "user", "content": blocks}]).messages == (
        Message("tool", "ok", tool_call_id="c1"),
        Message("tool", "", tool_call_id="c2"),
        Message("user", "and now?"),
    )


def test_results_go_first_wherever_they_stand():
    blocks = [text("note"), result("ok")]
    assert parse([{"role": "user", "content": blocks}]).messages == (
        Message("tool", "ok", tool_call_id="c1"),
        Message("user", "note"),
    )


@pytest.mark.parametrize("blocks", [[result("ok")], [result("ok"), text("")]])
def test_a_turn_of_results_alone_has_no_users_text(blocks):
    messages = parse([{"role": "user", "content": blocks}]).messages
    assert messages == (Message("tool", "ok", tool_call_id="c1"),)


@pytest.mark.parametrize("content", ["no such file", "Error: no such file"])
def test_a_failed_tool_says_so_once(content):
    block = result(content, is_error=True)
    (message,) = parse([{"role": "user", "content": [block]}]).messages
    assert message.content == "Error: no such file"


def test_tools_are_offered_unless_the_choice_is_none():
    tool = {
        **TOOL,
        "type": "custom",
        "strict": False,
        "cache_control": {"type": "ephemeral"},
        "eager_input_streaming": True,
        "input_examples": [],
        "allowed_callers": ["direct"],
    }
    offered = (ToolSpec("f", "d", {"type": "object"}),)
    assert parse(tools=[tool]).tools == offered
    assert parse(tools=[tool], tool_choice={"type": "auto"}).tools == offered
    assert parse(tools=[tool], tool_choice={"type": "none"}).tools == ()
    assert parse(tools=[{"name": "f", "input_schema": {}}]).tools == (ToolSpec("f", "", {}),)


def test_a_deferred_tool_is_offered_once_a_result_refers_to_it():
    tools = [TOOL, {**TOOL, "name": "g", "defer_loading": True}]
    assert [tool.name for tool in parse(tools=tools).tools] == ["f"]
    loaded = result([{"type": "tool_reference", "tool_name": "g"}])
    chat = parse([HI, {"role": "user", "content": [loaded]}], tools=tools)
    assert [tool.name for tool in chat.tools] == ["f", "g"]
    assert chat.messages[1] == Message("tool", "Tool loaded: g\n", tool_call_id="c1")


def test_one_tool_call_at_a_time_is_honoured():
    """litellm#18201: the wish for no parallel tool calls was lost on the way."""
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert not parse(tools=[TOOL], tool_choice=choice).parallel_tool_calls
    assert parse(tools=[TOOL], tool_choice={"type": "auto"}).parallel_tool_calls


def test_a_choice_of_tools_forces_a_call_of_one_or_of_any():
    tools = [TOOL, {**TOOL, "name": "g"}]
    any_of_them = {"type": "any", "disable_parallel_tool_use": True}
    assert parse(tools=tools, tool_choice=any_of_them).forced == Forced(None, "tool_choice")
    assert not parse(tools=tools, tool_choice=any_of_them).parallel_tool_calls
    named = parse(tools=tools, tool_choice={"type": "tool", "name": "g"})
    assert named.forced == Forced("g", "tool_choice")
    assert parse(tools=tools, tool_choice={"type": "auto"}).forced is None


def test_a_tool_that_is_not_offered_cannot_be_forced():
    tools = [TOOL, {**TOOL, "name": "g", "defer_loading": True}]
    for choice in ({"type": "tool", "name": "g"}, {"type": "tool"}):
        with pytest.raises(BadRequest) as caught:
            parse(tools=tools, tool_choice=choice)
        assert caught.value.where in ("tool_choice", "tool_choice.name")


def test_strict_tools_are_refused_and_not_taken_as_loose_ones():
    """litellm#41913: `strict` was dropped in silence."""
    with pytest.raises(BadRequest) as caught:
        parse(tools=[{**TOOL, "strict": True}])
    assert caught.value.where == "tools[0].strict"


def test_what_changes_nothing_is_taken_silently():
    parse(
        metadata={"user_id": "{}"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
        inference_geo="us",
        speed="standard",
        diagnostics={"previous_message_id": "r"},
        output_config={"effort": "high", "format": None},
        context_management={"edits": []},
        container=None,
        mcp_servers=None,
        some_future_field=None,
    )


@pytest.mark.parametrize(
    "thinking",
    [
        {"type": "adaptive"},
        {"type": "adaptive", "display": "summarized"},
        {"type": "enabled", "budget_tokens": 1024},
        {"type": "disabled"},
    ],
)
def test_thinking_is_a_hint(thinking):
    assert parse(thinking=thinking) == parse()


@pytest.mark.parametrize("keep", ["all", {"type": "all"}])
def test_an_edit_of_the_context_that_keeps_all_is_taken(keep):
    """Claude Code sends it with every request that may think."""
    edit = {"type": "clear_thinking_20251015", "keep": keep}
    assert parse(context_management={"edits": [edit]}) == parse()


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("temperature", 1.5, "temperature"),
        ("temperature", "hot", "temperature"),
        ("top_p", True, "top_p"),
        ("top_k", 0, "top_k"),
        ("max_tokens", None, "max_tokens"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", 1.5, "max_tokens"),
        ("stop_sequences", [""], "stop_sequences"),
        ("stop_sequences", "x", "stop_sequences"),
        ("stream", "yes", "stream"),
        ("model", None, "model"),
        ("system", 3, "system"),
        ("system", [{"type": "image"}], "system[0].type"),
        ("messages", [], "messages"),
        ("messages", {}, "messages"),
        ("messages", [{"role": "assistant", "content": ""}], "messages"),
        ("messages", [HI, {"role": "assistant", "content": "so"}], "messages"),
        ("tool_choice", "auto", "tool_choice"),
        ("tool_choice", {"type": "any"}, "tool_choice"),
        ("tool_choice", {"type": "any", "name": "f"}, "tool_choice.name"),
        ("tool_choice", {"type": "tool", "name": "f"}, "tool_choice"),
        ("tool_choice", {"type": "required"}, "tool_choice.type"),
        ("tool_choice", {"type": "auto", "name": "f"}, "tool_choice.name"),
        ("thinking", {"type": "between_tools"}, "thinking.type"),
        ("thinking", {"type": "adaptive", "depth": 3}, "thinking.depth"),
        ("output_config", {"format": {"type": "json_schema"}}, "output_config.format"),
        ("output_config", {"task_budget": {}}, "output_config.task_budget"),
        ("output_config", {"effort": 3}, "output_config.effort"),
        ("output_format", {"type": "json_schema"}, "output_format"),
        ("container", "c", "container"),
        ("mcp_servers", [{"url": "u"}], "mcp_servers"),
        ("compaction", {}, "compaction"),
        ("fallbacks", "default", "fallbacks"),
        ("thread", {"type": "create"}, "thread"),
        ("n", 2, "n"),
    ],
)
def test_what_is_wrong_or_would_change_the_sampling_is_refused_by_name(field, value, where):
    with pytest.raises(BadRequest) as caught:
        parse(**{field: value}) if field != "messages" else parse(value)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        ({"type": "clear_thinking_20251015"}, "keep"),
        ({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns"}}, "keep"),
        ({"type": "clear_thinking_20251015", "keep": "all", "trigger": {}}, "trigger"),
        ({"type": "clear_tool_uses_20250919"}, "type"),
        ({"type": "compact_20260112"}, "type"),
    ],
)
def test_an_edit_that_would_take_something_away_is_refused(edit, where):
    with pytest.raises(BadRequest) as caught:
        parse(context_management={"edits": [edit]})
    assert caught.value.where == f"context_management.edits[0].{where}"


@pytest.mark.parametrize(
    ("role", "block", "where"),
    [
        ("user", {"text": "x"}, "type"),
        ("user", text(3), "text"),
        ("user", text("x", citations=[{"type": "char_location"}]), "citations"),
        ("user", text("x", colour="red"), "colour"),
        ("user", {"type": "image", "source": {}}, "type"),
        ("user", {"type": "document", "source": {}}, "type"),
        ("user", {"type": "thinking", "thinking": "x", "signature": "s"}, "type"),
        ("user", called(), "type"),
        ("user", {"type": "tool_result", "content": "x"}, "tool_use_id"),
        ("user", result("x", is_error="no"), "is_error"),
        ("user", result([{"type": "image", "source": {}}]), "content[0].type"),
        ("user", result([{"type": "search_result"}]), "content[0].type"),
        ("user", result("x", toolset_name="browser"), "toolset_name"),
        ("assistant", result("x"), "type"),
        ("assistant", {"type": "redacted_thinking", "data": "x"}, "type"),
        ("assistant", {"type": "thinking", "signature": "s"}, "thinking"),
        ("assistant", {"type": "server_tool_use", "id": "c"}, "type"),
        ("assistant", {"type": "tool_use", "name": "f", "input": {}}, "id"),
        ("assistant", {"type": "tool_use", "id": "c", "input": {}}, "name"),
        ("assistant", {"type": "tool_use", "id": "c", "name": "f"}, "input"),
        ("assistant", {"type": "tool_use", "id": "c", "name": "f", "input": "x"}, "input"),
        ("system", {"type": "tool_addition"}, "type"),
    ],
)
def test_a_wrong_block_is_refused_where_it_is_wrong(role, block, where):
    with pytest.raises(BadRequest) as caught:
        parse([{"role": role, "content": [block]}, HI])
    assert caught.value.where == f"messages[0].content[0].{where}"


@pytest.mark.parametrize("kind", ["image", "document"])
def test_images_and_documents_are_refused_because_the_model_reads_only_text(kind):
    with pytest.raises(BadRequest, match=f"'{kind}' is not supported: the model reads only text"):
        parse([{"role": "user", "content": [{"type": kind, "source": {}}]}])


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ("hello", "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "system", "content": "x", "clear_at": "never"}, "messages[0].clear_at"),
    ],
)
def test_a_wrong_message_is_refused_where_it_is_wrong(message, where):
    with pytest.raises(BadRequest) as caught:
        parse([message, HI])
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("tool", "where"),
    [
        ({"type": "web_search_20250305", "name": "web_search"}, "type"),
        ({"type": "bash_20250124", "name": "bash"}, "type"),
        ({"input_schema": {}}, "name"),
        ({"name": "f"}, "input_schema"),
        ({"name": "f", "input_schema": []}, "input_schema"),
        ({**TOOL, "input_examples": [{}]}, "input_examples"),
        ({**TOOL, "allowed_callers": ["code_execution_20250825"]}, "allowed_callers"),
        ({**TOOL, "defer_loading": "no"}, "defer_loading"),
        ({**TOOL, "max_uses": 3}, "max_uses"),
    ],
)
def test_a_wrong_tool_is_refused_where_it_is_wrong(tool, where):
    with pytest.raises(BadRequest) as caught:
        parse(tools=[tool])
    assert caught.value.where == f"tools[0].{where}"


def test_a_server_tool_is_refused_by_its_type():
    with pytest.raises(BadRequest, match="'web_search_20250305'"):
        parse(tools=[{"type": "web_search_20250305", "name": "web_search"}])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "role", "input", "id", "name", "keep"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["messages", "system", "tools", "tool_choice", "thinking", "context_management"]
        ),
        json_values,
        max_size=3,
    )
)
def test_any_other_json_is_read_or_refused(fields):
    with suppress(BadRequest):
        assert parse(**{"messages": [HI], **fields}).messages
