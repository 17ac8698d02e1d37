"""What harnesses send in Google's form, and what becomes of it."""

import json
import re

import pytest

from polar.dialects import load
from polar.errors import BadRequest
from polar.types import Forced, Message, Sampling, ToolCall, ToolSpec

DIALECT = load("google_generate")
HI = {"role": "user", "parts": [{"text": "hi"}]}


def parse(contents=(HI,), method="generateContent", **fields):
    body = json.dumps({"contents": contents, **fields}).encode()
    return DIALECT.parse(body, {"model": "m", "method": method})


def messages(*contents) -> tuple[Message, ...]:
    return parse(contents).messages


def model(*parts):
    return {"role": "model", "parts": parts}


def user(*parts):
    return {"role": "user", "parts": parts}


def call(name, args=None, **fields):
    return {"functionCall": {"name": name, "args": args or {}, **fields}}


def answer(name, text, **fields):
    return {"functionResponse": {"name": name, "response": {"output": text}, **fields}}


def tools(*declarations, **fields):
    return parse(tools=[{"functionDeclarations": declarations}], **fields).tools


def sampling(**config) -> Sampling:
    return parse(generationConfig=config).sampling


def refused(*contents, **fields) -> str | None:
    """Say where a request is refused."""
    with pytest.raises(BadRequest) as caught:
        parse(contents or (HI,), **fields)
    return caught.value.where


def route(path, method="POST"):
    for found in DIALECT.routes:
        if found.method == method and (match := re.fullmatch(found.pattern, path)):
            return found.serves, found.header, match.groupdict()
    return None


@pytest.mark.parametrize("version", ["v1", "v1beta"])
@pytest.mark.parametrize("name", ["m", "gemini-2.5-pro", "org/name", "name:7b"])
@pytest.mark.parametrize(
    ("method", "serves"),
    [("generateContent", "chat"), ("streamGenerateContent", "chat"), ("countTokens", "count")],
)
def test_the_path_names_the_model_and_the_method(version, name, method, serves):
    found = route(f"/{version}/models/{name}:{method}")
    assert found == (serves, None, {"model": name, "method": method})


def test_models_are_told_of_at_its_own_paths_and_to_its_own_clients_at_others_too():
    assert route("/v1beta/models", "GET") == ("models", None, {})
    assert route("/v1beta/models/m", "GET") == ("model", None, {"model": "m"})
    assert route("/v1/models", "GET") == ("models", "x-goog-api-key", {})
    assert route("/v1/models/m", "GET") == ("model", "x-goog-api-key", {"model": "m"})


def test_other_paths_are_none_of_its_own():
    assert route("/v1beta/models/m:embedContent") is None
    assert route("/v1/models") is None
    assert route("/v2/models/m:generateContent") is None


def test_a_plain_request_takes_the_providers_defaults():
    chat = parse()
    assert chat.messages == (Message("user", "hi"),)
    assert chat.sampling == Sampling()
    assert (chat.model, chat.stream, chat.include_usage, chat.tools) == ("m", False, False, ())


def test_the_method_tells_whether_to_stream():
    chat = parse(method="streamGenerateContent")
    assert (chat.stream, chat.include_usage) == (True, True)


def test_a_path_without_a_model_is_refused():
    with pytest.raises(BadRequest, match="no model"):
        DIALECT.parse(json.dumps({"contents": [HI]}).encode())


@pytest.mark.parametrize("name", ["systemInstruction", "system_instruction"])
@pytest.mark.parametrize("role", [{}, {"role": "system"}, {"role": "user"}])
def test_the_system_instruction_is_the_first_message(name, role):
    instruction = {**role, "parts": [{"text": "be "}, {"text": "good"}]}
    assert parse(**{name: instruction}).messages[0] == Message("system", "be good")


def test_an_empty_system_instruction_is_none():
    assert parse(systemInstruction={"parts": []}).messages == (Message("user", "hi"),)


def test_one_object_is_taken_for_an_array_of_one():
    chat = parse({"parts": {"text": "hi"}}, systemInstruction={"parts": {"text": "be good"}})
    assert chat.messages == (Message("system", "be good"), Message("user", "hi"))


def test_text_parts_are_joined_as_they_are():
    assert messages(user({"text": "a "}, {"text": "b"})) == (Message("user", "a b"),)


@pytest.mark.parametrize("content", [{"role": "user"}, user(), user({"text": ""})])
def test_an_empty_user_turn_is_empty(content):
    assert messages(content) == (Message("user", ""),)


@pytest.mark.parametrize(
    "content",
    [
        model(),
        {"role": "model"},
        model({"text": ""}),
        model({"thought": True}),
        model({"thoughtSignature": "c2ln"}),
        model({"text": "", "thought": True, "thoughtSignature": "c2ln", "partMetadata": {}}),
    ],
)
def test_an_empty_model_turn_is_empty(content):
    assert messages(content) == (Message("assistant", ""),)


@pytest.mark.parametrize(
    "signature", [{}, {"thoughtSignature": "c2ln"}, {"thought_signature": "not base64!"}]
)
def test_thoughts_are_the_reasoning_whatever_their_signature(signature):
    (turn,) = messages(model({"text": "why", "thought": True, **signature}, {"text": "so"}))
    assert turn == Message("assistant", "so", "why")


def test_parts_of_a_turn_are_one_message_in_any_order():
    turn = messages(
        model({"text": "a", "thought": True}, {"text": "x"}, {"text": "b", "thought": True}),
        model({"text": "y"}, call("f", id="1")),
        model(call("g", {"a": 1}, id="2"), {"text": "z"}),
    )
    calls = (ToolCall("1", "f", "{}"), ToolCall("2", "g", '{"a": 1}'))
    assert turn == (Message("assistant", "xyz", "ab", calls),)


def test_a_tool_turn_is_read_whole():
    found = messages(
        user({"text": "go"}),
        model(call("f", {"a": "ä"}, id="c1")),
        {"role": "function", "parts": [answer("f", "ok", id="c1")]},
    )
    assert found[1].tool_calls == (ToolCall("c1", "f", '{"a": "ä"}'),)
    assert found[2] == Message("tool", "ok", tool_call_id="c1")


def test_a_signature_that_a_harness_made_up_is_taken():
    skip = {"thoughtSignature": "skip_thought_signature_validator"}
    (turn,) = messages(model({**call("f", id="1"), **skip}))
    assert turn.tool_calls == (ToolCall("1", "f", "{}"),)


def test_a_call_without_arguments_has_an_empty_object():
    (turn,) = messages(model({"functionCall": {"id": "1", "name": "f"}}))
    assert turn.tool_calls[0].arguments == "{}"


def test_names_that_a_user_made_are_not_respelled():
    args = {"some_key": {"other_key": 1}}
    found = messages(
        model({"function_call": {"name": "f", "args": args}}),
        user({"function_response": {"name": "f", "response": args}}),
    )
    assert json.loads(found[0].tool_calls[0].arguments) == json.loads(found[1].content) == args


def ids(*contents):
    """List the ids of all calls, and those of all answers."""
    found = messages(*contents)
    calls = [call.id for message in found for call in message.tool_calls]
    return calls, [message.tool_call_id for message in found if message.role == "tool"]


def test_calls_without_an_id_are_numbered_and_answered_by_name_and_order():
    turn = model(call("f"), call("g"), call("f"))
    calls, answers = ids(turn, user(answer("g", "2"), answer("f", "1"), answer("f", "3")))
    assert calls == ["google-0-f", "google-1-g", "google-2-f"]
    assert answers == [calls[1], calls[0], calls[2]]


def test_ids_are_the_same_however_the_turn_was_cut_into_contents():
    cut = [model(call("f")), model(call("f"))]
    assert ids(*cut, user(answer("f", "1"))) == ids(
        model(call("f"), call("f")), user(answer("f", "1"))
    )


def test_answers_find_their_calls_by_id_first():
    turn = model(call("f", id="a"), call("f", id="b"))
    answers = user(answer("f", "2", id="b"), answer("f", "1", id="a"))
    assert ids(turn, answers)[1] == ["b", "a"]


def test_an_answer_whose_call_lost_its_id_is_found_by_name():
    calls, answers = ids(model(call("f"), call("g")), user(answer("g", "1", id="g-1733-ab")))
    assert answers == [calls[1]]


def test_a_call_that_was_never_answered_takes_no_answer_of_a_later_turn():
    calls, answers = ids(
        model(call("f")), user({"text": "stop"}), model(call("f")), user(answer("f", "1"))
    )
    assert answers == [calls[1]]


def test_an_answer_that_nothing_asked_for_keeps_its_id_or_gets_one():
    assert ids(user(answer("f", "1", id="x"), answer("f", "2"), answer("f", "3")))[1] == [
        "x",
        "google-unasked-1-f",
        "google-unasked-2-f",
    ]


def test_answers_and_text_keep_their_order():
    found = messages(
        model(call("f", id="1"), call("g", id="2")),
        user({"text": "a"}, answer("f", "x", id="1"), answer("g", "y", id="2"), {"text": "b"}),
    )
    assert [(message.role, message.content) for message in found[1:]] == [
        ("user", "a"),
        ("tool", "x"),
        ("tool", "y"),
        ("user", "b"),
    ]


@pytest.mark.parametrize(
    ("response", "shown"),
    [
        ({"output": "text\n"}, "text\n"),
        ({"result": "text"}, "text"),
        ({"error": "no such file"}, "Error: no such file"),
        ({"name": "f", "content": "text"}, "text"),
        ({"name": "g", "content": "text"}, '{"name": "g", "content": "text"}'),
        ({"content": "text"}, '{"content": "text"}'),
        ({"output": {"a": 1}}, '{"output": {"a": 1}}'),
        ({"output": "a", "error": "b"}, '{"output": "a", "error": "b"}'),
        ({"stdout": "ä", "code": 0}, '{"stdout": "ä", "code": 0}'),
        ({}, "{}"),
    ],
)
def test_an_answer_is_shown_as_its_text_or_as_json(response, shown):
    part = {"functionResponse": {"name": "f", "response": response}}
    assert messages(user(part))[0].content == shown


def test_tools_are_offered_with_their_schema():
    schema = {"type": "object", "properties": {"some_key": {"type": "string"}}}
    assert tools(
        {"name": "f", "description": "d", "parametersJsonSchema": schema},
        {"name": "g", "response": {"type": "STRING"}, "behavior": "BLOCKING"},
    ) == (ToolSpec("f", "d", schema), ToolSpec("g", "", {}))


def test_functions_of_all_tools_are_offered():
    declared = [{"function_declarations": [{"name": name}]} for name in "ab"]
    assert [tool.name for tool in parse(tools=[{}, *declared]).tools] == ["a", "b"]


def test_googles_schema_becomes_json_schema():
    (tool,) = tools(
        {
            "name": "f",
            "parameters": {
                "type": "OBJECT",
                "property_ordering": ["type"],
                "required": ["type"],
                "properties": {
                    "type": {"type": "STRING", "enum": ["STRING"], "description": "OBJECT"},
                    "some_list": {"type": "ARRAY", "items": {"type": "INTEGER"}},
                    "either": {"any_of": [{"type": "NUMBER"}, {"type": "NULL"}]},
                    "free": {"type": "object", "additional_properties": {"type": "BOOLEAN"}},
                    "closed": {"type": "OBJECT", "additionalProperties": False},
                    "one": {"type": "STRING", "default": {"type": "STRING"}},
                },
            },
        }
    )
    assert tool.parameters == {
        "type": "object",
        "propertyOrdering": ["type"],
        "required": ["type"],
        "properties": {
            "type": {"type": "string", "enum": ["STRING"], "description": "OBJECT"},
            "some_list": {"type": "array", "items": {"type": "integer"}},
            "either": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "free": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "closed": {"type": "object", "additionalProperties": False},
            "one": {"type": "string", "default": {"type": "STRING"}},
        },
    }


@pytest.mark.parametrize(
    ("config", "offered"),
    [
        ({}, True),
        ({"functionCallingConfig": {}}, True),
        ({"functionCallingConfig": {"mode": "AUTO", "allowedFunctionNames": []}}, True),
        ({"function_calling_config": {"mode": "MODE_UNSPECIFIED"}}, True),
        ({"functionCallingConfig": {"mode": "NONE"}}, False),
        ({"includeServerSideToolInvocations": False}, True),
    ],
)
def test_tools_are_offered_unless_the_mode_is_none(config, offered):
    assert bool(tools({"name": "f"}, toolConfig=config)) is offered


@pytest.mark.parametrize(
    ("calling", "forced"),
    [
        ({"mode": "ANY"}, None),
        ({"mode": "ANY", "allowedFunctionNames": []}, None),
        ({"mode": "ANY", "allowed_function_names": ["g"]}, "g"),
        ({"mode": "ANY", "allowedFunctionNames": ["g", "f"]}, None),
    ],
)
def test_a_mode_of_any_forces_a_call_of_one_function_or_of_any(calling, forced):
    functions = [{"name": "f"}, {"name": "g"}]
    chat = parse(
        tools=[{"functionDeclarations": functions}],
        toolConfig={"functionCallingConfig": calling},
    )
    assert chat.forced == Forced(forced, "toolConfig.functionCallingConfig")
    assert [tool.name for tool in chat.tools] == ["f", "g"]


def test_all_sampling_fields_are_read():
    assert sampling(
        temperature=0,
        topP=0.5,
        topK=3.0,
        maxOutputTokens=5,
        stopSequences=["a", "b"],
        seed=-4,
    ) == Sampling(0.0, 0.5, 3, 5, ("a", "b"), (), -4)
    snake = {"top_p": 0.5, "max_output_tokens": 5, "stop_sequences": ["a"]}
    assert parse(generation_config=snake).sampling == Sampling(1.0, 0.5, None, 5, ("a",))


def test_what_changes_nothing_is_taken_silently():
    parse(
        model="models/m",
        safetySettings=[{"category": "HARM", "threshold": "BLOCK_NONE"}],
        labels={"a": "b"},
        cachedContent=None,
        someFutureField=None,
        generationConfig={
            "candidateCount": 1,
            "thinkingConfig": {"includeThoughts": True, "thinkingBudget": -1},
            "responseMimeType": "text/plain",
            "responseModalities": ["TEXT"],
            "presencePenalty": 0,
            "frequencyPenalty": 0.0,
            "responseSchema": None,
        },
    )


def test_tokens_are_counted_of_contents_or_of_a_whole_request():
    instruction = {"parts": [{"text": "be good"}]}
    inner = {"model": "models/m", "contents": [HI], "system_instruction": instruction}
    for name in ("generateContentRequest", "generate_content_request"):
        body = json.dumps({name: inner}).encode()
        chat = DIALECT.parse(body, {"model": "m", "method": "countTokens"})
        assert chat.messages == (Message("system", "be good"), Message("user", "hi"))
    assert parse(method="countTokens").messages == (Message("user", "hi"),)


def test_a_count_of_two_things_is_refused():
    inner = {"contents": [HI]}
    assert refused(method="countTokens", generateContentRequest=inner) == "contents"
    assert refused(generateContentRequest=inner) == "generateContentRequest"


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("cachedContent", "cachedContents/1", "cachedContent"),
        ("some_future_field", 1, "someFutureField"),
        ("contents", [], "contents"),
        ("contents", "hi", "contents"),
        ("system_instruction", "be good", "systemInstruction"),
        ("systemInstruction", {"parts": [call("f")]}, "systemInstruction.parts[0].functionCall"),
        ("generationConfig", [], "generationConfig"),
        ("tools", [[]], "tools[0]"),
    ],
)
def test_a_wrong_field_is_refused_by_name(field, value, where):
    with pytest.raises(BadRequest) as caught:
        parse(**{field: value})
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("candidateCount", 0),
        ("candidateCount", 9),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("topP", 1.1),
        ("topK", 0),
        ("topK", 1.5),
        ("maxOutputTokens", 0),
        ("stopSequences", [""]),
        ("stopSequences", "END"),
        ("seed", "4"),
        ("responseMimeType", "application/json"),
        ("responseSchema", {"type": "OBJECT"}),
        ("responseJsonSchema", {"type": "object"}),
        ("_responseJsonSchema", {"type": "object"}),
        ("responseModalities", ["TEXT", "IMAGE"]),
        ("responseLogprobs", True),
        ("logprobs", 3),
        ("presencePenalty", 0.5),
        ("frequencyPenalty", -1),
        ("speechConfig", {}),
        ("imageConfig", {}),
    ],
)
def test_sampling_that_is_wrong_or_unsupported_is_refused_by_name(field, value):
    assert refused(generationConfig={field: value}) == f"generationConfig.{field}"


def test_a_field_in_both_spellings_is_refused():
    assert refused(generationConfig={"topP": 1, "top_p": 0.5}) == "generationConfig.topP"


@pytest.mark.parametrize(
    "tool",
    ["googleSearch", "googleSearchRetrieval", "codeExecution", "urlContext", "computerUse"],
)
def test_tools_that_google_runs_itself_are_refused_by_name(tool):
    assert refused(tools=[{tool: {}}]) == f"tools[0].{tool}"
    snake = re.sub("([A-Z])", lambda found: f"_{found[1].lower()}", tool)
    assert refused(tools=[{snake: {}}]) == f"tools[0].{tool}"


@pytest.mark.parametrize(
    ("declaration", "where"),
    [
        ({}, "name"),
        ({"name": "f", "parameters": []}, "parameters"),
        ({"name": "f", "parametersJsonSchema": "x"}, "parametersJsonSchema"),
        ({"name": "f", "parameters": {}, "parametersJsonSchema": {}}, "parametersJsonSchema"),
        ({"name": "f", "behavior": "NON_BLOCKING"}, "behavior"),
        ({"name": "f", "strict": True}, "strict"),
    ],
)
def test_a_wrong_function_is_refused_where_it_is_wrong(declaration, where):
    found = refused(tools=[{"functionDeclarations": [declaration]}])
    assert found == f"tools[0].functionDeclarations[0].{where}"


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"functionCallingConfig": {"mode": "ANY"}}, "functionCallingConfig"),
        (
            {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["x"]}},
            "functionCallingConfig",
        ),
        ({"functionCallingConfig": {"mode": "VALIDATED"}}, "functionCallingConfig.mode"),
        (
            {"functionCallingConfig": {"allowedFunctionNames": ["f"]}},
            "functionCallingConfig.allowedFunctionNames",
        ),
        ({"retrievalConfig": {}}, "retrievalConfig"),
        ({"includeServerSideToolInvocations": True}, "includeServerSideToolInvocations"),
    ],
)
def test_a_choice_of_functions_that_cannot_be_kept_to_is_refused(config, where):
    assert refused(toolConfig=config) == f"toolConfig.{where}"


@pytest.mark.parametrize("name", ["inlineData", "fileData"])
@pytest.mark.parametrize("content", [user, model])
def test_media_are_refused_because_the_model_reads_only_text(name, content):
    with pytest.raises(BadRequest, match="reads only text") as caught:
        messages(content({"text": "look"}, {name: {"mimeType": "image/png", "data": "aGk="}}))
    assert caught.value.where == f"contents[0].parts[1].{name}"


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"executableCode": {"code": "1"}}, ".executableCode"),
        ({"codeExecutionResult": {"outcome": "OUTCOME_OK"}}, ".codeExecutionResult"),
        ({"toolCall": {}}, ".toolCall"),
        ({}, ""),
        ({"text": "x", "functionCall": {"name": "f"}}, ""),
        ({"text": 3}, ".text"),
        ({"text": "x", "thought": "yes"}, ".thought"),
        ({"text": "x", "thoughtSignature": 3}, ".thoughtSignature"),
        (answer("f", "x"), ".functionResponse"),
        ({"functionCall": {}}, ".functionCall.name"),
        ({"functionCall": {"name": "f", "args": []}}, ".functionCall.args"),
        ({"functionCall": {"name": "f", "partialArgs": []}}, ".functionCall.partialArgs"),
        ({"functionCall": {"name": "f", "willContinue": True}}, ".functionCall.willContinue"),
    ],
)
def test_a_wrong_part_of_the_model_is_refused_where_it_is_wrong(part, where):
    assert refused(model(part)) == f"contents[0].parts[0]{where}"


@pytest.mark.parametrize(
    ("part", "where"),
    [
        (call("f"), ".functionCall"),
        ({"text": "x", "thought": True}, ".thought"),
        ({"functionResponse": {"response": {}}}, ".functionResponse.name"),
        ({"functionResponse": {"name": "f"}}, ".functionResponse.response"),
        ({"functionResponse": {"name": "f", "response": "x"}}, ".functionResponse.response"),
        (answer("f", "x", parts=[{"inlineData": {}}]), ".functionResponse.parts"),
        (answer("f", "x", willContinue=True), ".functionResponse.willContinue"),
    ],
)
def test_a_wrong_part_of_the_user_is_refused_where_it_is_wrong(part, where):
    assert refused(user(part)) == f"contents[0].parts[0]{where}"


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ({"role": "assistant", "parts": []}, ".role"),
        ({"role": "user", "parts": [], "name": "x"}, ".name"),
        ({"role": "user", "parts": "x"}, ".parts"),
        ("hello", ""),
    ],
)
def test_a_wrong_content_is_refused_where_it_is_wrong(content, where):
    assert refused(content) == f"contents[0]{where}"
