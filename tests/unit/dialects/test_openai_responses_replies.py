"""Replies as OpenAI's own client understands them."""

import json

import httpx
import hypothesis.strategies as st
import openai
import pytest
from hypothesis import given, settings
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from sampled_replies import call_deltas, deltas_of, texts

from polar.dialects import CountsTokens, load
from polar.errors import ContextOverflow, EngineError, PolarError, Unauthorized
from polar.types import (
    Chat,
    Message,
    ReasoningDelta,
    Reply,
    Sampling,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStart,
    ToolSpec,
    Usage,
)

DIALECT = load("openai_responses")
EVENT = TypeAdapter(ResponseStreamEvent)
INPUT = {"type": "object", "properties": {"input": {"type": "string"}}}
TOOLS = (
    ToolSpec("f", "a function", {"type": "object"}),
    ToolSpec("patch", "a freeform tool", INPUT, freeform=True),
    ToolSpec("ns__g", "a function in a namespace", {"type": "object"}, namespace="ns"),
    ToolSpec("ns__exec", "a freeform tool in one", INPUT, freeform=True, namespace="ns"),
)
FREEFORM = {tool.name for tool in TOOLS if tool.freeform}
CHAT = Chat("m", (Message("user", "hi"),), TOOLS, Sampling(max_tokens=99), stream=True)

inputs = st.builds(
    lambda text, ascii_only: json.dumps({"input": text}, ensure_ascii=ascii_only),
    texts,
    st.booleans(),
)
tool_calls = st.one_of(
    st.builds(
        ToolCall,
        id=st.uuids().map(str),
        name=st.sampled_from(["f", "ns__g", "undeclared"]),
        arguments=texts | st.just('{"a": 1}'),
    ),
    st.builds(
        ToolCall,
        id=st.uuids().map(str),
        name=st.sampled_from(sorted(FREEFORM)),
        arguments=inputs | texts | st.sampled_from(['{"input": 3}', '{"input": "\\ud800"}', "{}"]),
    ),
)


@st.composite
def replies(draw):
    calls = tuple(draw(st.lists(tool_calls, max_size=3)))
    message = Message("assistant", draw(texts), draw(st.none() | texts.filter(bool)), calls)
    finish_reason = draw(st.sampled_from(["tool_calls" if calls else "stop", "length"]))
    counts = st.integers(0, 9999)
    sampled = draw(counts)
    thought = draw(st.integers(0, sampled))
    return Reply(message, finish_reason, Usage(draw(counts), sampled, draw(counts), thought))


def client(body: bytes, content_type="application/json", status=200) -> openai.OpenAI:
    def answer(request):
        return httpx.Response(status, content=body, headers={"content-type": content_type})

    return openai.OpenAI(
        api_key="k",
        base_url="http://test/v1",
        max_retries=0,
        http_client=httpx.Client(transport=httpx.MockTransport(answer)),
    )


def whole(reply: Reply, chat: Chat = CHAT):
    body = DIALECT.response(chat, reply, response_id="call-1", created=5)
    with client(body) as sdk:
        return sdk.responses.create(model="m", input="hi")


def encoded(reply: Reply, deltas, chat: Chat = CHAT) -> bytes:
    encoder = DIALECT.encoder(chat, response_id="call-1", created=5)
    body = encoder.start() + encoder.keepalive()
    for delta in deltas:
        body += encoder.delta(delta)
    return body + encoder.keepalive() + encoder.end(reply)


def events_of(body: bytes):
    with client(body, "text/event-stream") as sdk:
        return list(sdk.responses.create(model="m", input="hi", stream=True))


def data_of(body: bytes):
    return [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data:")]


def given_calls(response):
    """The calls that a client is given, with freeform inputs as they are."""
    return [
        (item.call_id, item.namespace, item.name, item.type, getattr(item, field))
        for item in response.output
        for kind, field in (("function_call", "arguments"), ("custom_tool_call", "input"))
        if item.type == kind
    ]


def expected_calls(message):
    for call in message.tool_calls:
        namespace, _, name = call.name.rpartition("__")
        if call.name not in FREEFORM:
            yield call.id, namespace or None, name, "function_call", call.arguments
            continue
        try:
            text = json.loads(call.arguments)["input"]
            text.encode()
        except (ValueError, KeyError, TypeError, AttributeError):
            text = call.arguments
        yield call.id, namespace or None, name, "custom_tool_call", text


def reasoning_of(response):
    items = [item for item in response.output if item.type == "reasoning"]
    return "".join(part.text for item in items for part in item.content) or None


def sent_back(response):
    """What becomes of a response's items when they are sent back as they came."""
    items = [item.model_dump() for item in response.output]
    asked = {"role": "user", "content": "hi"}
    body = {"model": "m", "input": [asked, *items, {"role": "user", "content": "go on"}]}
    _, *said, _ = DIALECT.parse(json.dumps(body).encode()).messages
    return said


def normal(message):
    def arguments(text):
        try:
            return json.loads(text)
        except ValueError:
            return text

    calls = [(call.id, call.name, arguments(call.arguments)) for call in message.tool_calls]
    return (message.role, message.content, message.reasoning, calls)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_whole_reply_and_its_stream_are_the_same_to_the_client(data):
    reply = data.draw(replies())
    ours = whole(reply)
    body = encoded(reply, deltas_of(data.draw, reply.message))
    last = events_of(body)[-1]
    assert last.type == f"response.{ours.status}"
    assert ours.to_dict() == last.response.to_dict()
    assert ours.output_text == reply.message.content
    assert reasoning_of(ours) == reply.message.reasoning
    assert given_calls(ours) == list(expected_calls(reply.message))
    assert ours.usage.input_tokens == reply.usage.prompt_tokens
    assert ours.usage.output_tokens == reply.usage.sampled_tokens
    assert ours.usage.output_tokens_details.reasoning_tokens == reply.usage.reasoning_tokens
    assert ours.usage.input_tokens_details.cached_tokens == reply.usage.cached_tokens


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_the_clients_own_accumulation_ends_in_the_reply(data):
    reply = data.draw(replies())
    reply = Reply(reply.message, "stop", reply.usage)
    body = encoded(reply, deltas_of(data.draw, reply.message))
    with (
        client(body, "text/event-stream") as sdk,
        sdk.responses.stream(model="m", input="hi") as stream,
    ):
        final = stream.get_final_response()
    assert final.output_text == reply.message.content
    assert reasoning_of(final) == reply.message.reasoning
    assert given_calls(final) == list(expected_calls(reply.message))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_responses_and_events_have_all_that_the_clients_models_require(data):
    reply = data.draw(replies())
    body = DIALECT.response(CHAT, reply, response_id="call-1", created=5)
    assert Response.model_validate_json(body).status in ("completed", "incomplete")
    for event in data_of(encoded(reply, deltas_of(data.draw, reply.message))):
        assert EVENT.validate_python(event).type == event["type"]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_events_come_item_after_item_and_their_pieces_add_up(data):
    reply = data.draw(replies())
    body = encoded(reply, deltas_of(data.draw, reply.message))
    events = data_of(body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [line[7:] for line in body.decode().split("\n") if line.startswith("event: ")]
    assert names == [event["type"] for event in events]
    done, added, pieces_said = [], None, ""
    for event in events:
        kind = event["type"].removeprefix("response.")
        if "output_index" in event:
            assert event["output_index"] == len(done)
        if "item_id" in event:
            assert event["item_id"] == added["id"]
        if kind == "output_item.added":
            assert added is None
            added, pieces_said = event["item"], ""
        elif kind.endswith(".delta"):
            pieces_said += event["delta"]
        elif kind.endswith("_part.done"):
            assert event["part"] in event_content(events, event["item_id"])
        elif kind == "output_item.done":
            assert added["id"] == event["item"]["id"]
            done.append(event["item"])
            added = None
        elif kind.endswith(".done"):
            said = next(event[name] for name in ("text", "arguments", "input") if name in event)
            assert said == pieces_said
    assert events[-1]["response"]["output"] == done
    assert done


def event_content(events, item_id):
    (content,) = [
        event["item"]["content"]
        for event in events
        if event["type"] == "response.output_item.done" and event["item"]["id"] == item_id
    ]
    return content


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_reasoning_and_text_in_any_order_lose_nothing_and_come_back_as_one_turn(data):
    deltas = data.draw(
        st.lists(
            st.builds(TextDelta, texts.filter(bool)) | st.builds(ReasoningDelta, texts.filter(bool))
        )
    )
    calls = tuple(data.draw(st.lists(tool_calls, max_size=2)))
    message = Message(
        "assistant",
        "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
        "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) or None,
        calls,
    )
    reply = Reply(message, "stop", Usage(1, 2))
    final = events_of(encoded(reply, [*deltas, *call_deltas(data.draw, calls)]))[-1].response
    assert final.output_text == message.content
    assert reasoning_of(final) == message.reasoning
    assert list(map(normal, sent_back(final))) == [normal(message)]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_the_client_sends_back_is_what_was_sampled(data):
    reply = data.draw(replies())
    assert list(map(normal, sent_back(whole(reply)))) == [normal(reply.message)]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(Message("assistant", ""), "stop", Usage(1, 1)),
        Reply(Message("assistant", ""), "length", Usage(1, 1)),
        Reply(Message("assistant", "", "so"), "length", Usage(1, 1)),
    ],
)
def test_no_output_is_ever_empty(reply):
    reasoning = [ReasoningDelta(reply.message.reasoning)] if reply.message.reasoning else []
    for response in (whole(reply), events_of(encoded(reply, reasoning))[-1].response):
        (item,) = response.output
        assert item.status == response.status


def test_tool_calls_are_only_given_when_the_call_is_on_record():
    encoder = DIALECT.encoder(CHAT, response_id="call-1", created=5)
    encoder.start()
    call = ToolCall("c1", "f", '{"a": 1}')
    sent = [
        encoder.delta(delta)
        for delta in (ToolCallStart(0, "c1", "f"), ToolArgumentsDelta(0, '{"a": 1}'))
    ]
    assert sent == [b"", b""]
    reply = Reply(Message("assistant", "", None, (call,)), "tool_calls", Usage(1, 2))
    assert b"c1" in encoder.end(reply)


def test_a_failed_stream_gives_no_call_away():
    encoder = DIALECT.encoder(CHAT, response_id="call-1", created=5)
    body = encoder.start() + encoder.delta(TextDelta("let me"))
    body += encoder.delta(ToolCallStart(0, "c1", "f"))
    body += encoder.delta(ToolArgumentsDelta(0, '{"a": 1}'))
    body += encoder.error(EngineError("engine gone"))
    assert b"c1" not in body
    last = events_of(body)[-1]
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert (last.response.error.code, last.response.error.message) == (
        "server_error",
        "engine gone",
    )


@pytest.mark.parametrize("error", [Unauthorized("who"), PolarError("broken")])
def test_errors_in_a_stream_have_a_code_and_a_message(error):
    encoder = DIALECT.encoder(CHAT, response_id="call-1", created=5)
    last = data_of(encoder.start() + encoder.error(error))[-1]
    assert last["response"]["error"]["message"] == error.what
    assert last["response"]["error"]["code"]


def test_function_calls_are_there_without_streaming():  # AIClient2API 472
    call = ToolCall("c1", "f", '{"a": 1}')
    reply = Reply(Message("assistant", "ok", None, (call,)), "tool_calls", Usage(1, 2))
    assert [item.type for item in whole(reply).output] == ["message", "function_call"]


def test_calls_are_in_the_completed_event():  # agency-swarm 633
    calls = (ToolCall("c1", "f", "{}"), ToolCall("c2", "patch", '{"input": "x"}'))
    reply = Reply(Message("assistant", "", None, calls), "tool_calls", Usage(1, 2))
    last = events_of(encoded(reply, ()))[-1]
    assert [item.call_id for item in last.response.output] == ["c1", "c2"]


def test_arguments_are_in_deltas_and_in_the_done_events():  # openclaude 1259
    call = ToolCall("c1", "f", '{"a": 1}')
    reply = Reply(Message("assistant", "", None, (call,)), "tool_calls", Usage(1, 2))
    events = {event.type: event for event in events_of(encoded(reply, ()))}
    assert events["response.function_call_arguments.delta"].delta == call.arguments
    assert events["response.function_call_arguments.done"].arguments == call.arguments
    assert events["response.output_item.done"].item.arguments == call.arguments


def test_a_stop_before_the_last_argument_is_told_as_incomplete():  # claude-code 19143
    call = ToolCall("c1", "f", '{"a": ')
    reply = Reply(Message("assistant", "", None, (call,)), "length", Usage(1, 2))
    for response in (whole(reply), events_of(encoded(reply, ()))[-1].response):
        assert response.status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.output[-1].status == "incomplete"


def test_reasoning_is_kept_beside_parallel_tools():  # ai-sdk-provider 339
    calls = (ToolCall("c1", "f", "{}"), ToolCall("c2", "f", "{}"))
    reply = Reply(Message("assistant", "", "because", calls), "tool_calls", Usage(1, 2))
    deltas = [
        ReasoningDelta("be"),
        ToolCallStart(0, "c1", "f"),
        ReasoningDelta("cause"),
        ToolCallStart(1, "c2", "f"),
    ]
    final = events_of(encoded(reply, deltas))[-1].response
    assert [item.type for item in final.output] == ["reasoning", "function_call", "function_call"]
    assert reasoning_of(final) == "because"


def test_a_response_tells_what_was_asked_for():
    response = whole(Reply(Message("assistant", "x"), "stop", Usage(1, 2)))
    assert (response.id, response.model, response.created_at) == ("call-1", "m", 5)
    assert (response.error, response.max_output_tokens) == (None, 99)
    assert (response.parallel_tool_calls, response.tool_choice) == (True, "auto")
    function, custom, namespace = response.tools
    assert (function.type, function.name) == ("function", "f")
    assert (custom.type, custom.name) == ("custom", "patch")
    assert [tool.name for tool in namespace.tools] == ["g", "exec"]


def test_the_length_of_a_prompt_is_told():
    assert isinstance(DIALECT, CountsTokens)
    with client(DIALECT.count(7)) as sdk:
        counted = sdk.responses.input_tokens.count(model="m", input="hi")
    assert (counted.input_tokens, counted.object) == (7, "response.input_tokens")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unauthorized("who"), openai.AuthenticationError),
        (ContextOverflow(prompt_tokens=9, max_context=8), openai.BadRequestError),
        (EngineError("down"), openai.InternalServerError),
    ],
)
def test_the_client_raises_its_own_error(error, kind):
    status, body = DIALECT.error(error)
    with client(body, status=status) as sdk, pytest.raises(kind, match=error.what) as caught:
        sdk.responses.create(model="m", input="hi")
    if isinstance(error, ContextOverflow):
        assert caught.value.code == "context_length_exceeded"
