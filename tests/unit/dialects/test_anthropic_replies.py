"""Replies as Anthropic's own client understands them."""

import json

import anthropic
import httpx2
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from sampled_replies import arguments_with, deltas_of, not_objects, texts, tool_calls

from polar.dialects import CountsTokens, load
from polar.errors import (
    BadRequest,
    ContextOverflow,
    EngineError,
    PolarError,
    RequestTooLarge,
    Unauthorized,
    UnknownRoute,
)
from polar.types import (
    Chat,
    Message,
    ReasoningDelta,
    Reply,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStart,
    Usage,
)

DIALECT = load("anthropic_messages")
CHAT = Chat("m", (Message("user", "hi"),), stream=True)
ASKED = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}


arguments = arguments_with(st.integers())


@st.composite
def replies(draw, arguments=arguments):
    calls = tuple(draw(st.lists(tool_calls(arguments), max_size=3)))
    message = Message("assistant", draw(texts), draw(st.none() | texts.filter(bool)), calls)
    finish_reason = draw(st.sampled_from(["tool_calls", "length"] if calls else ["stop", "length"]))
    stop_string = draw(st.none() | st.just("END")) if finish_reason == "stop" else None
    counts = st.integers(0, 9999)
    cached = draw(counts)
    usage = Usage(cached + draw(counts), draw(counts), cached)
    return Reply(message, finish_reason, usage, stop_string)


def client(body: bytes, content_type="application/json", status=200, requests=None):
    def answer(request):
        if requests is not None:
            requests.append(request)
        return httpx2.Response(status, content=body, headers={"content-type": content_type})

    return anthropic.Anthropic(
        api_key="k",
        base_url="http://test",
        max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(answer)),
    )


def api(sdk, *, beta):
    return sdk.beta.messages if beta else sdk.messages


def whole(reply: Reply, *, beta=False):
    with client(DIALECT.response(CHAT, reply, response_id="r", created=5)) as sdk:
        return api(sdk, beta=beta).create(**ASKED)


def encoded(reply: Reply, deltas) -> bytes:
    """Encode a stream with a ping after every piece."""
    encoder = DIALECT.encoder(CHAT, response_id="r", created=5)
    body = [encoder.start(), encoder.keepalive()]
    for delta in deltas:
        body += [encoder.delta(delta), encoder.keepalive()]
    return b"".join([*body, encoder.end(reply)])


def streamed(reply: Reply, deltas, *, beta=False):
    with (
        client(encoded(reply, deltas), "text/event-stream") as sdk,
        api(sdk, beta=beta).stream(**ASKED) as stream,
    ):
        return stream.get_final_message()


def events(body: bytes) -> list[dict]:
    """Read a stream's events without a client; each is named after its data's type."""
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def read_back(message) -> Message:
    """Send a reply back through the client and read the request that it makes of it."""
    requests = []
    answer = DIALECT.response(
        CHAT, Reply(Message("assistant", "x"), "stop", Usage(1, 1)), response_id="r", created=5
    )
    with client(answer, requests=requests) as sdk:
        turns = [message.to_param(), {"role": "user", "content": "go on"}]
        sdk.messages.create(**{**ASKED, "messages": [*ASKED["messages"], *turns]})
    return DIALECT.parse(requests[0].content).messages[1]


def normal(message: Message):
    """Take a message apart, with arguments compared as JSON where they are an object."""
    calls = [(call.id, call.name, normal_json(call.arguments)) for call in message.tool_calls]
    return message.content, message.reasoning, calls


def normal_json(text):
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


@given(st.data(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_whole_reply_and_its_stream_are_the_same_to_the_client(data, beta):
    reply = data.draw(replies())
    deltas = list(deltas_of(data.draw, reply.message))
    ours, theirs = whole(reply, beta=beta), streamed(reply, deltas, beta=beta)
    assert ours.model_dump(exclude_none=True) == theirs.model_dump(exclude_none=True)


@given(replies())
@settings(max_examples=60, deadline=None)
def test_a_reply_is_to_the_client_what_was_sampled(reply):
    message = whole(reply)
    found = Message(
        "assistant",
        "".join(block.text for block in message.content if block.type == "text"),
        "".join(block.thinking for block in message.content if block.type == "thinking") or None,
        tuple(
            ToolCall(block.id, block.name, json.dumps(block.input))
            for block in message.content
            if block.type == "tool_use"
        ),
    )
    assert normal(found) == normal(reply.message)
    usage, counts = message.usage, reply.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counts.prompt_tokens
    assert usage.cache_read_input_tokens == counts.cached_tokens
    assert usage.output_tokens == counts.sampled_tokens
    assert message.stop_sequence == reply.stop_string
    stopped = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
    expected = "stop_sequence" if reply.stop_string else stopped[reply.finish_reason]
    assert message.stop_reason == expected


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_the_client_sends_back_is_what_was_sampled(data):
    reply = data.draw(replies(arguments | not_objects))
    deltas = list(deltas_of(data.draw, reply.message))
    for message in (whole(reply), streamed(reply, deltas)):
        assert normal(read_back(message)) == normal(reply.message)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_blocks_of_a_stream_follow_each_other_and_are_never_mixed(data):
    reply = data.draw(replies())
    deltas = data.draw(st.permutations(list(deltas_of(data.draw, reply.message))))
    found = [event for event in events(encoded(reply, deltas)) if event["type"] != "ping"]
    kinds = [event["type"] for event in found]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("message_start") == kinds.count("message_stop") == 1
    number, open_kind = 0, None
    for event in found[1:-2]:
        assert event["index"] == number
        if event["type"] == "content_block_start":
            assert open_kind is None
            open_kind = event["content_block"]["type"]
        elif event["type"] == "content_block_delta":
            own = {"text": "text", "thinking": "thinking signature", "tool_use": "input_json"}
            assert event["delta"]["type"].removesuffix("_delta") in own[open_kind].split()
        else:
            assert event["type"] == "content_block_stop"
            number, open_kind = number + 1, None
    assert open_kind is None


@given(not_objects, st.data())
@settings(max_examples=30, deadline=None)
def test_arguments_that_are_no_object_call_a_tool_that_no_harness_has(arguments, data):
    """What is no object is neither lost nor becomes `{}`, and no tool runs on it."""
    call = ToolCall("call_1", "bash", arguments)
    reply = Reply(Message("assistant", "", None, (call,)), "length", Usage(1, 1))
    for message in (whole(reply), streamed(reply, deltas_of(data.draw, reply.message))):
        (block,) = message.content
        assert (block.id, block.name) == ("call_1", "invalid_tool_input")
        assert block.input == {"name": "bash", "arguments": arguments}


def test_arguments_keep_their_numbers_and_their_order_in_whole_replies():
    call = ToolCall("call_1", "bash", '{"b": 60000.0, "a": 123456789012345678901234567890}')
    reply = Reply(Message("assistant", "", None, (call,)), "tool_calls", Usage(1, 1))
    assert call.arguments.encode() in DIALECT.response(CHAT, reply, response_id="r", created=5)


def test_the_signature_of_thinking_depends_on_its_text_alone():
    reply = Reply(Message("assistant", "", "why not"), "stop", Usage(1, 1))
    other = Reply(Message("assistant", "", "why"), "stop", Usage(1, 1))
    (block,) = whole(reply).content
    cut = [ReasoningDelta("wh"), ReasoningDelta("y "), ReasoningDelta("not")]
    assert block.signature
    assert streamed(reply, cut).content[0].signature == block.signature
    assert whole(other).content[0].signature != block.signature


def test_an_empty_reply_has_no_blocks():
    reply = Reply(Message("assistant", ""), "stop", Usage(3, 1))
    assert whole(reply).content == streamed(reply, []).content == []


def test_pieces_without_text_open_no_block():
    reply = Reply(Message("assistant", ""), "stop", Usage(3, 1))
    assert streamed(reply, [TextDelta(""), ReasoningDelta("")]).content == []


def test_the_prompts_length_is_told_at_the_start_and_all_usage_at_the_end():
    """Some clients read the length of the prompt at the start alone, and compact by it."""
    reply = Reply(Message("assistant", "x"), "stop", Usage(11, 7, 3))
    encoder = DIALECT.encoder(CHAT, response_id="r", created=5, prompt_tokens=11)
    found = events(encoder.start() + encoder.delta(TextDelta("x")) + encoder.end(reply))
    assert found[0]["message"]["usage"] == {
        "input_tokens": 11,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    assert found[-2]["usage"] == {
        "input_tokens": 8,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": 7,
    }


def test_a_stream_shows_life_while_a_tool_call_is_sampled():
    encoder = DIALECT.encoder(CHAT, response_id="r", created=5)
    for delta in (ToolCallStart(0, "c", "f"), ToolArgumentsDelta(0, "{")):
        assert encoder.delta(delta) == encoder.keepalive()


def test_the_client_lists_the_one_model():
    with client(DIALECT.models("some-model", created=1700000000)) as sdk:
        (model,) = sdk.models.list()
    assert (model.id, model.display_name) == ("some-model", "some-model")
    assert model.created_at.timestamp() == 1700000000


def test_a_counted_prompt_is_answered_when_a_client_asks_for_it():
    """verifiers#1669: the count of tokens failed behind a proxy."""
    assert isinstance(DIALECT, CountsTokens)
    asked = {name: ASKED[name] for name in ("model", "messages")}
    with client(DIALECT.count(17)) as sdk:
        assert sdk.messages.count_tokens(**asked).input_tokens == 17


@pytest.mark.parametrize(
    ("error", "kind", "named"),
    [
        (BadRequest("no", where="tools"), anthropic.BadRequestError, "invalid_request_error"),
        (Unauthorized("who"), anthropic.AuthenticationError, "authentication_error"),
        (UnknownRoute("where"), anthropic.NotFoundError, "not_found_error"),
        (RequestTooLarge("big"), anthropic.RequestTooLargeError, "request_too_large"),
        (PolarError("broken"), anthropic.InternalServerError, "api_error"),
        (EngineError("down"), anthropic.ServiceUnavailableError, "overloaded_error"),
    ],
)
def test_the_client_raises_its_own_error(error, kind, named):
    status, body = DIALECT.error(error)
    with client(body, status=status) as sdk, pytest.raises(kind, match=error.what) as caught:
        sdk.messages.create(**ASKED)
    assert type(caught.value) is kind
    assert caught.value.type == named


def test_an_overflow_is_told_in_the_sentence_that_clients_know():
    status, body = DIALECT.error(ContextOverflow(prompt_tokens=1234, max_context=1000))
    with client(body, status=status) as sdk, pytest.raises(anthropic.BadRequestError) as caught:
        sdk.messages.create(**ASKED)
    message = caught.value.body["error"]["message"]
    assert message == "prompt is too long: 1234 tokens > 1000 maximum"


@pytest.mark.parametrize("deltas", [[], [TextDelta("so far")], [ReasoningDelta("so far")]])
def test_the_client_raises_on_an_error_event(deltas):
    encoder = DIALECT.encoder(CHAT, response_id="r", created=5)
    body = encoder.start() + b"".join(map(encoder.delta, deltas))
    body += encoder.error(EngineError("engine gone"))
    with (
        client(body, "text/event-stream") as sdk,
        sdk.messages.stream(**ASKED) as stream,
        pytest.raises(anthropic.APIStatusError, match="engine gone") as caught,
    ):
        stream.until_done()
    assert caught.value.type == "overloaded_error"


def test_text_is_streamed_as_text_when_no_tool_is_called():
    """litellm#29286: an empty list of tool calls turned text into tool deltas."""
    reply = Reply(Message("assistant", "hello"), "stop", Usage(1, 1))
    found = events(encoded(reply, [TextDelta("hel"), TextDelta("lo")]))
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert deltas == [{"type": "text_delta", "text": piece} for piece in ("hel", "lo")]


def test_a_message_starts_once_and_thinking_is_in_a_block_of_its_own():
    """litellm#32357: message_start came twice, and thinking inside a text block."""
    reply = Reply(Message("assistant", "text", "why"), "stop", Usage(1, 1))
    body = encoded(reply, [ReasoningDelta("why"), TextDelta("text")])
    assert body.count(b"event: message_start\n") == 1
    assert [
        block.type for block in streamed(reply, [ReasoningDelta("why"), TextDelta("text")]).content
    ] == [
        "thinking",
        "text",
    ]


def test_reasoning_is_there_when_streaming():
    """litellm#20246: reasoning was missing from streams only."""
    reply = Reply(Message("assistant", "", "because"), "stop", Usage(1, 1))
    deltas = [ReasoningDelta("be"), ReasoningDelta("cause")]
    assert streamed(reply, deltas).content[0].thinking == "because"


def test_a_tool_call_is_there_when_not_streaming():
    """AIClient2API#472: calls were dropped from whole replies only."""
    call = ToolCall("call_1", "bash", '{"a": 1}')
    message = whole(Reply(Message("assistant", "", None, (call,)), "tool_calls", Usage(1, 1)))
    (block,) = message.content
    assert (block.type, block.name, block.input) == ("tool_use", "bash", {"a": 1})


def test_arguments_that_come_only_at_the_end_are_not_empty():
    """openclaude#1259: arguments that no delta carried were executed as `{}`."""
    call = ToolCall("call_1", "bash", '{"a": 1}')
    reply = Reply(Message("assistant", "", None, (call,)), "tool_calls", Usage(1, 1))
    (block,) = streamed(reply, [ToolCallStart(0, "call_1", "bash")]).content
    assert block.input == {"a": 1}


def test_a_call_that_is_cut_short_is_never_half_an_object():
    """claude-code#19143: a stop before the last piece of the arguments left half an object."""
    call = ToolCall("call_1", "bash", '{"force": true, "path": "/tm')
    reply = Reply(Message("assistant", "", None, (call,)), "length", Usage(1, 1))
    deltas = [ToolCallStart(0, "call_1", "bash"), ToolArgumentsDelta(0, call.arguments)]
    (block,) = streamed(reply, deltas).content
    assert (block.name, block.input["arguments"]) == ("invalid_tool_input", call.arguments)


def test_reasoning_before_several_tool_calls_is_kept():
    """ai-sdk-provider#339: thinking was lost when several tools were called at once."""
    calls = tuple(ToolCall(f"call_{n}", "bash", f'{{"n": {n}}}') for n in range(2))
    reply = Reply(Message("assistant", "", "because", calls), "tool_calls", Usage(1, 1))
    deltas = [ReasoningDelta("because")]
    for n, call in enumerate(calls):
        deltas += [ToolCallStart(n, call.id, call.name), ToolArgumentsDelta(n, call.arguments)]
    for message in (whole(reply), streamed(reply, deltas)):
        assert [block.type for block in message.content] == ["thinking", "tool_use", "tool_use"]
        assert read_back(message) == reply.message


def test_signed_reasoning_comes_back_as_the_reasoning_of_its_turn():
    """OmniRoute#2504: what marks a thought as the model's own was stripped on the way."""
    reply = Reply(Message("assistant", "text", "because"), "stop", Usage(1, 1))
    message = streamed(reply, [ReasoningDelta("because"), TextDelta("text")])
    assert message.content[0].signature
    assert read_back(message) == reply.message
