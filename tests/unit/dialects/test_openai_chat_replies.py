"""Replies as OpenAI's own client understands them."""

import json

import httpx
import hypothesis.strategies as st
import openai
import pytest
from hypothesis import given, settings
from sampled_replies import deltas_of, texts, tool_calls

from polar.dialects import load
from polar.errors import ContextOverflow, EngineError, Unauthorized
from polar.types import (
    Chat,
    Message,
    ReasoningDelta,
    Reply,
    TextDelta,
    ToolCall,
    Usage,
)

DIALECT = load("openai_chat")
MESSAGES = [{"role": "user", "content": "hi"}]


@st.composite
def replies(draw):
    calls = tuple(draw(st.lists(tool_calls(texts), max_size=3)))
    message = Message("assistant", draw(texts), draw(st.none() | texts.filter(bool)), calls)
    finish_reason = "tool_calls" if calls else draw(st.sampled_from(["stop", "length"]))
    counts = st.integers(0, 9999)
    sampled = draw(counts)
    thought = draw(st.integers(0, sampled))
    return Reply(message, finish_reason, Usage(draw(counts), sampled, draw(counts), thought))


def client(body: bytes, content_type="application/json", status=200, **headers) -> openai.OpenAI:
    def answer(request):
        return httpx.Response(
            status, content=body, headers={"content-type": content_type, **headers}
        )

    return openai.OpenAI(
        api_key="k",
        base_url="http://test/v1",
        max_retries=0,
        http_client=httpx.Client(transport=httpx.MockTransport(answer)),
    )


def whole(reply: Reply):
    body = DIALECT.response(CHAT, reply, response_id="r", created=5)
    with client(body) as sdk:
        return sdk.chat.completions.create(model="m", messages=MESSAGES)


CHAT = Chat("m", (Message("user", "hi"),), stream=True, include_usage=True)


def streamed(reply: Reply, deltas):
    encoder = DIALECT.encoder(CHAT, response_id="r", created=5)
    body = encoder.start() + encoder.keepalive()
    body += b"".join(map(encoder.delta, deltas)) + encoder.keepalive() + encoder.end(reply)
    with (
        client(body, "text/event-stream") as sdk,
        sdk.chat.completions.stream(
            model="m", messages=MESSAGES, stream_options={"include_usage": True}
        ) as stream,
    ):
        return stream.get_final_completion()


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_whole_reply_and_its_stream_are_the_same_to_the_client(data):
    reply = data.draw(replies())
    deltas = list(deltas_of(data.draw, reply.message))
    if reply.finish_reason == "length":
        deltas = [delta for delta in deltas if isinstance(delta, TextDelta | ReasoningDelta)]
        reply = Reply(reply.message, "stop", reply.usage)
    ours, theirs = whole(reply), streamed(reply, deltas)
    assert (ours.id, ours.model, ours.created) == (theirs.id, theirs.model, theirs.created)
    assert ours.usage == theirs.usage
    left, right = ours.choices[0], theirs.choices[0]
    assert left.finish_reason == right.finish_reason == reply.finish_reason
    assert (left.message.content or "") == (right.message.content or "") == reply.message.content
    reasoning = getattr(left.message, "reasoning_content", None)
    assert reasoning == getattr(right.message, "reasoning_content", None)
    assert reasoning == reply.message.reasoning
    for message in (left.message, right.message):
        assert reply.message.tool_calls == tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
        )


@given(replies())
@settings(max_examples=30, deadline=None)
def test_what_the_client_sends_back_is_what_was_sampled(reply):
    message = whole(reply).choices[0].message.model_dump()
    body = json.dumps({"model": "m", "messages": [message]}).encode()
    assert DIALECT.parse(body).messages == (reply.message,)


def test_usage_is_streamed_only_when_asked_for():
    reply = Reply(Message("assistant", "x"), "stop", Usage(1, 2))
    chat = Chat("m", (Message("user", "hi"),), stream=True)
    encoder = DIALECT.encoder(chat, response_id="r", created=5)
    body = encoder.start() + encoder.delta(TextDelta("x")) + encoder.end(reply)
    assert b"usage" not in body
    assert body.endswith(b"data: [DONE]\n\n")


def test_a_reply_without_tool_calls_has_no_such_field():
    reply = Reply(Message("assistant", ""), "stop", Usage(1, 2))
    body = json.loads(DIALECT.response(CHAT, reply, response_id="r", created=5))
    assert "tool_calls" not in body["choices"][0]["message"]
    assert body["choices"][0]["message"]["content"] == ""


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
    with client(body, status=status) as sdk, pytest.raises(kind, match=error.what):
        sdk.chat.completions.create(model="m", messages=MESSAGES)


def test_the_client_raises_on_an_error_event():
    encoder = DIALECT.encoder(CHAT, response_id="r", created=5)
    body = encoder.start() + encoder.error(EngineError("engine gone"))
    with (
        client(body, "text/event-stream") as sdk,
        pytest.raises(openai.APIError, match="engine gone"),
    ):
        list(sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True))
