"""What harnesses send, and what becomes of it."""

import json

import pytest

from polar.dialects import load
from polar.errors import BadRequest
from polar.types import Forced, Message, Sampling, ToolCall, ToolSpec

DIALECT = load("openai_responses")
INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
FUNCTION = {
    "type": "function",
    "name": "shell",
    "description": "runs",
    "parameters": {"type": "object"},
    "strict": False,
}


def parse(input="hi", **fields):
    return DIALECT.parse(json.dumps({"model": "m", "input": input, **fields}).encode())


def parse_all(*items):
    return parse(list(items)).messages


CONTENT = "input[0].content[0].x"


def user(text):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def said(text, **fields):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, **fields}


def thought(text, **fields):
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "summary": [], "content": content, **fields}


def called(call_id, name="f", arguments="{}", **fields):
    call = {"call_id": call_id, "name": name, "arguments": arguments}
    return {"type": "function_call", **call, **fields}


def answered(call_id, output="ok", kind="function_call_output"):
    return {"type": kind, "call_id": call_id, "output": output}


def test_a_plain_request_takes_the_providers_defaults():
    chat = parse()
    assert chat.messages == (Message("user", "hi"),)
    assert chat.sampling == Sampling()
    assert (chat.model, chat.stream, chat.tools) == ("m", False, ())
    assert (chat.parallel_tool_calls, chat.continues, chat.stored) == (True, None, True)


def test_all_sampling_fields_are_read():
    chat = parse(temperature=0, top_p=0.5, max_output_tokens=10, stream=True)
    assert chat.sampling == Sampling(temperature=0.0, top_p=0.5, max_tokens=10)
    assert chat.stream


def test_instructions_come_first_and_say_that_they_do():
    chat = parse(instructions="be good")
    assert chat.messages == (Message("system", "be good"), Message("user", "hi"))
    assert chat.instructed
    assert not parse([{"role": "system", "content": "be good"}]).instructed


def test_parallel_tool_calls_are_heard():  # litellm 18201
    assert not parse(parallel_tool_calls=False).parallel_tool_calls
    assert parse(parallel_tool_calls=True).parallel_tool_calls


def test_developers_speak_as_the_system():  # litellm 41913
    for role in ("developer", "system"):
        message = {"role": role, "content": [{"type": "input_text", "text": "be good"}]}
        assert parse_all(message) == (Message("system", "be good"),)


def test_messages_need_no_type_and_may_be_plain_text():
    chat = parse([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}])
    assert chat.messages == (Message("user", "hi"), Message("assistant", "ho"))


def test_text_parts_are_joined_as_they_are():
    parts = [
        {"type": "output_text", "text": "a ", "annotations": [], "logprobs": []},
        {"type": "refusal", "refusal": "b"},
    ]
    assert parse_all({"role": "assistant", "content": parts})[0].content == "a b"


def test_the_items_of_a_turn_become_one_message():
    messages = parse_all(
        user("go"),
        thought("so", id="rs_call-1_0", encrypted_content=None, status="completed"),
        said("look", id="msg_call-1_1", status="completed", phase="commentary"),
        called("c1", id="fc_call-1_2", status="completed"),
        called("c2", arguments='{"a":1}', id="fc_call-1_3"),
        answered("c1", [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]),
        answered("c2"),
    )
    assert messages == (
        Message("user", "go"),
        Message(
            "assistant", "look", "so", (ToolCall("c1", "f", "{}"), ToolCall("c2", "f", '{"a":1}'))
        ),
        Message("tool", "ab", tool_call_id="c1"),
        Message("tool", "ok", tool_call_id="c2"),
    )


@pytest.mark.parametrize("content", [None, []])
@pytest.mark.parametrize("encrypted", [None, "", "sealed"])
def test_reasoning_without_content_is_its_summary(content, encrypted):
    item = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}],
        "content": content,
        "encrypted_content": encrypted,
    }
    assert parse_all(item, said("x")) == (Message("assistant", "x", "a\n\nb"),)


def test_a_turn_that_another_reply_follows_stays_its_own():
    messages = parse_all(
        said("half", id="msg_call-1_0"),
        thought("again", id="rs_call-2_0"),
        said("whole", id="msg_call-2_1"),
    )
    assert messages == (Message("assistant", "half"), Message("assistant", "whole", "again"))


def test_a_turn_goes_on_after_results_that_were_put_between_its_calls():
    messages = parse_all(
        called("c1", id="fc_call-1_0"),
        answered("c1"),
        called("c2", id="fc_call-1_1"),
        answered("c2"),
        called("c3", id="fc_call-2_0"),
    )
    assert [len(message.tool_calls) for message in messages] == [2, 0, 0, 1]


def test_without_ids_the_order_tells_turns_apart():
    messages = parse_all(thought("a"), said("b"), called("c1"), called("c2"), thought("c"))
    assert [message.reasoning for message in messages] == ["a", "c"]
    assert len(parse_all(said("a"), said("b"))) == 2
    assert len(parse_all(called("c1"), said("a"))) == 2
    assert len(parse_all(called("c1"), answered("c1"), called("c2"))) == 3
    assert len(parse_all(said("a", id="msg_68af00"), called("c1", id="fc_68af00"))) == 1


def test_freeform_calls_become_the_arguments_that_were_sampled():
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a "b"\n'}
    messages = parse_all(call, answered("c1", "done", "custom_tool_call_output"))
    (made,) = messages[0].tool_calls
    assert (made.name, json.loads(made.arguments)) == ("patch", {"input": 'a "b"\n'})
    assert messages[1] == Message("tool", "done", tool_call_id="c1")


def test_a_freeform_input_that_was_given_as_it_was_comes_back_as_it_is():
    call = {
        "type": "custom_tool_call",
        "id": "raw_call-1_0",
        "call_id": "c1",
        "name": "patch",
        "input": '{"patch": 1}',
    }
    assert parse_all(call)[0].tool_calls[0].arguments == '{"patch": 1}'


def test_a_call_in_a_namespace_has_the_name_that_the_model_knows():
    (message,) = parse_all(called("c1", "spawn", namespace="agents"))
    assert message.tool_calls[0].name == "agents__spawn"


def test_tools_are_offered_unless_the_choice_is_none():
    expected = (ToolSpec("shell", "runs", {"type": "object"}),)
    assert parse(tools=[FUNCTION], tool_choice="auto").tools == expected
    assert parse(tools=[FUNCTION], tool_choice="none").tools == ()


def allowed(mode, *tools):
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


SHELL_CHOICE = {"type": "function", "name": "shell"}
PATCH_CHOICE = {"type": "custom", "name": "patch"}
SPAWN_CHOICE = {"type": "function", "name": "spawn", "namespace": "agents"}
DECLARED = [
    FUNCTION,
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
]


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("auto", None),
        ("required", Forced(None, "tool_choice")),
        (SHELL_CHOICE, Forced("shell", "tool_choice")),
        (PATCH_CHOICE, Forced("patch", "tool_choice")),
        (SPAWN_CHOICE, Forced("agents__spawn", "tool_choice")),
        (allowed("auto", SHELL_CHOICE, PATCH_CHOICE, SPAWN_CHOICE), None),
        (allowed("required", SHELL_CHOICE), Forced("shell", "tool_choice.tools")),
    ],
)
def test_a_choice_of_tools_forces_a_call_of_one_or_of_any(choice, forced):
    assert parse(tools=DECLARED, tool_choice=choice).forced == forced


@pytest.mark.parametrize(
    ("choice", "where"),
    [
        ({"type": "function", "name": "spawn"}, "tool_choice"),
        ({**SHELL_CHOICE, "x": 1}, "tool_choice.x"),
        (allowed("auto", SHELL_CHOICE), "tool_choice.tools"),
        (allowed("required", SHELL_CHOICE, PATCH_CHOICE), "tool_choice.tools"),
        (allowed("required", {"type": "mcp", "server_label": "x"}), "tool_choice.tools[0].type"),
        (allowed("never", SHELL_CHOICE), "tool_choice.mode"),
    ],
)
def test_a_choice_of_tools_that_cannot_be_kept_to_is_refused_by_name(choice, where):
    with pytest.raises(BadRequest) as caught:
        parse(tools=DECLARED, tool_choice=choice)
    assert caught.value.where == where


def test_a_summary_cannot_be_forced_to_be_a_call():
    with pytest.raises(BadRequest, match="a summary is no call"):
        parse(
            [user("hi"), {"type": "compaction_trigger"}], tools=[FUNCTION], tool_choice="required"
        )


@pytest.mark.parametrize("syntax", ["lark", "regex"])
def test_a_freeform_tool_is_a_function_of_text_that_is_told_the_grammar(syntax):
    form = {"type": "grammar", "syntax": syntax, "definition": "start: X"}
    tool = {"type": "custom", "name": "patch", "description": "Edits.", "format": form}
    (spec,) = parse(tools=[tool]).tools
    assert (spec.name, spec.parameters, spec.freeform) == ("patch", INPUT, True)
    assert spec.description == f"Edits.\n\nThe input must match this {syntax} grammar:\nstart: X"


@pytest.mark.parametrize("form", [None, {"type": "text"}])
def test_a_freeform_tool_without_a_grammar_is_described_as_it_is(form):
    tool = {"type": "custom", "name": "exec", "description": "Runs.", "format": form}
    assert parse(tools=[tool]).tools == (ToolSpec("exec", "Runs.", INPUT, freeform=True),)


def test_the_tools_of_a_namespace_have_names_of_their_own():
    nested = [{**FUNCTION, "name": "spawn"}, {"type": "custom", "name": "shell"}]
    space = {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": nested}
    plain, spawn, shell = parse(tools=[FUNCTION, space]).tools
    assert (plain.name, plain.namespace) == ("shell", None)
    assert (spawn.name, spawn.namespace, spawn.freeform) == ("agents__spawn", "agents", False)
    assert (shell.name, shell.namespace, shell.freeform) == ("agents__shell", "agents", True)
    assert spawn.description == "About all tools agents__*: Helpers.\n\nruns"


def test_two_tools_of_one_name_are_refused():
    space = {"type": "namespace", "name": "a", "tools": [{**FUNCTION, "name": "b"}]}
    with pytest.raises(BadRequest, match="two tools have the name 'a__b'"):
        parse(tools=[{**FUNCTION, "name": "a__b"}, space])


def test_items_may_declare_tools_which_replace_earlier_ones():
    again = {**FUNCTION, "description": "runs better"}
    tools = [again, {**FUNCTION, "name": "more"}]
    item = {"type": "additional_tools", "role": "developer", "tools": tools}
    chat = parse([item, user("hi")], tools=[FUNCTION])
    assert [(tool.name, tool.description) for tool in chat.tools] == [
        ("shell", "runs better"),
        ("more", "runs"),
    ]
    assert chat.messages == (Message("user", "hi"),)
    assert parse([item, user("hi")], tool_choice="none").tools == ()


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview", "tool_search"])
def test_the_providers_extra_tools_are_left_out(kind):
    assert [tool.name for tool in parse(tools=[{"type": kind}, FUNCTION]).tools] == ["shell"]


@pytest.mark.parametrize("kind", ["file_search", "code_interpreter", "mcp", "local_shell", "shell"])
def test_tools_that_a_harness_relies_on_are_refused_by_name(kind):
    with pytest.raises(BadRequest, match=f"'{kind}'") as caught:
        parse(tools=[FUNCTION, {"type": kind}])
    assert caught.value.where == "tools[1].type"


def test_what_changes_nothing_is_taken_silently():
    parse(
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "high", "summary": "auto"},
        text={"verbosity": "low", "format": {"type": "text"}},
        prompt_cache_key="k",
        client_metadata={"a": "b"},
        service_tier="auto",
        truncation="disabled",
        metadata={"a": "b"},
        user="u",
        safety_identifier="s",
        stream_options={"include_obfuscation": False},
        background=False,
        top_logprobs=0,
        store=True,
        prompt=None,
        some_future_field=None,
    )


def test_a_request_says_whether_and_what_may_be_continued():
    chat = parse(store=False, previous_response_id="call-1")
    assert (chat.stored, chat.continues) == (False, "call-1")
    only = DIALECT.parse(b'{"model": "m", "previous_response_id": "call-1"}')
    assert only.messages == ()


def test_a_prompts_length_can_be_asked_without_a_model():
    chat = DIALECT.parse(b'{"input": "hi"}', {"counts": "input_tokens"})
    assert chat.messages == (Message("user", "hi"),)


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("background", True, "background"),
        ("conversation", "conv_1", "conversation"),
        ("prompt", {"id": "p"}, "prompt"),
        ("context_management", [], "context_management"),
        ("truncation", "auto", "truncation"),
        ("top_logprobs", 3, "top_logprobs"),
        ("include", ["message.output_text.logprobs"], "include[0]"),
        ("include", [3], "include[0]"),
        ("text", {"format": {"type": "json_schema"}}, "text.format.type"),
        ("text", {"format": {"type": "json_object"}}, "text.format.type"),
        ("text", {"tone": "warm"}, "text.tone"),
        ("text", "plain", "text"),
        ("stream_options", {"x": 1}, "stream_options.x"),
        ("tool_choice", "required", "tool_choice"),
        ("tool_choice", "always", "tool_choice"),
        ("tool_choice", {"type": "function", "name": "f"}, "tool_choice"),
        ("tool_choice", {"type": "file_search"}, "tool_choice.type"),
        ("parallel_tool_calls", "no", "parallel_tool_calls"),
        ("store", "no", "store"),
        ("metadata", "x", "metadata"),
        ("previous_response_id", 3, "previous_response_id"),
        ("instructions", ["x"], "instructions"),
        ("temperature", 3, "temperature"),
        ("temperature", "hot", "temperature"),
        ("top_p", True, "top_p"),
        ("max_output_tokens", 0, "max_output_tokens"),
        ("stop", ["x"], "stop"),
        ("seed", 3, "seed"),
        ("stream", "yes", "stream"),
        ("input", [], "input"),
        ("input", {}, "input"),
        ("input", None, "input"),
        ("model", None, "model"),
        ("tools", {}, "tools"),
    ],
)
def test_what_is_wrong_or_would_change_the_sampling_is_refused_by_name(field, value, where):
    with pytest.raises(BadRequest) as caught:
        parse(**{field: value})
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("item", "where"),
    [
        ("hello", "input[0]"),
        ({"content": "x"}, "input[0].role"),
        ({"role": "tool", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": 3}, "input[0].content"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "u"}]},
            "input[0].content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "input_file", "file_id": "u"}]},
            "input[0].content[0].type",
        ),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "function_call_output", "call_id": "c"}, "input[0].output"),
        (
            answered("c", [{"type": "input_image", "image_url": "u"}]),
            "input[0].output[0].type",
        ),
        ({"type": "function_call", "name": "f", "arguments": ""}, "input[0].call_id"),
        ({"type": "function_call", "call_id": "c", "arguments": ""}, "input[0].name"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[0].arguments"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, "input[0].input"),
        ({"type": "reasoning", "encrypted_content": "sealed"}, "input[0].encrypted_content"),
        ({"type": "item_reference", "id": "msg_1"}, "input[0].type"),
        ({"type": "web_search_call", "id": "ws_1"}, "input[0].type"),
        ({"type": "local_shell_call"}, "input[0].type"),
        ({"type": "additional_tools", "tools": [{"type": "mcp"}]}, "input[0].tools[0].type"),
        ({**user("hi"), "weight": 1}, "input[0].weight"),
        ({**user("hi"), "content": [{"type": "input_text", "text": "a", "x": 1}]}, CONTENT),
        ({"type": "reasoning", "summary": [], "x": 1}, "input[0].x"),
        ({**called("c", "f"), "async": True}, "input[0].async"),
        ({**called("c", "f"), "caller": {"type": "program"}}, "input[0].caller"),
        ({**answered("c", "x"), "is_error": True}, "input[0].is_error"),
    ],
)
def test_a_wrong_item_is_refused_where_it_is_wrong(item, where):
    with pytest.raises(BadRequest) as caught:
        parse([item, user("hi")])
    assert caught.value.where == where


def test_marks_on_items_and_tools_that_change_nothing_are_taken():
    marks = {"id": "x_1", "status": "completed", "phase": None, "created_by": "me"}
    marks |= {"internal_chat_message_metadata_passthrough": {"turn_id": "t"}}
    direct = {"caller": {"type": "direct"}, "async": False}
    items = [user("hi"), called("c", "shell"), answered("c", "x")]
    marked = [
        {**items[0], **marks},
        {**items[1], **marks, **direct},
        {**items[2], **marks, **direct, "name": "shell"},
    ]
    assert parse_all(*marked) == parse_all(*items)
    tool = {**FUNCTION, "strict": True, "defer_loading": True, "allowed_callers": ["direct"]}
    assert parse(tools=[tool]).tools == parse(tools=[FUNCTION]).tools


def test_what_a_response_repeats_makes_no_other_request():
    assert parse(metadata={"a": "b"}, user="u") == parse(metadata={"a": "c"})


def test_images_are_refused_in_plain_words():
    with pytest.raises(BadRequest, match="images are not supported"):
        parse([{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}])


@pytest.mark.parametrize(
    ("tool", "where"),
    [
        ({"name": "f"}, "tools[0].type"),
        ({"type": "function"}, "tools[0].name"),
        ({"type": "function", "name": "f", "parameters": []}, "tools[0].parameters"),
        ({"type": "custom"}, "tools[0].name"),
        ({"type": "custom", "name": "f", "format": {"type": "x"}}, "tools[0].format.type"),
        (
            {"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "bnf"}},
            "tools[0].format.syntax",
        ),
        (
            {"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark"}},
            "tools[0].format.definition",
        ),
        ({"type": "function", "name": "f", "x": 1}, "tools[0].x"),
        ({"type": "function", "name": "f", "async": True}, "tools[0].async"),
        (
            {"type": "function", "name": "f", "allowed_callers": ["programmatic"]},
            "tools[0].allowed_callers",
        ),
        ({"type": "function", "name": "f", "format": {"type": "text"}}, "tools[0].format"),
        ({"type": "custom", "name": "f", "format": {"type": "text", "x": 1}}, "tools[0].format.x"),
        ({"type": "namespace", "name": "n", "tools": [], "x": 1}, "tools[0].x"),
        ({"type": "namespace", "tools": []}, "tools[0].name"),
        (
            {"type": "namespace", "name": "n", "tools": [{"type": "namespace"}]},
            "tools[0].tools[0].type",
        ),
    ],
)
def test_a_wrong_tool_is_refused_where_it_is_wrong(tool, where):
    with pytest.raises(BadRequest) as caught:
        parse(tools=[tool])
    assert caught.value.where == where
