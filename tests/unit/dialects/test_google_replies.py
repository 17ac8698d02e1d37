"""Replies as Google's own client understands them."""

import base64
import json
import re

import httpx
import hypothesis.strategies as st
import pytest
from google import genai
from google.genai import errors, types
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

DIALECT = load("google_generate")
CHAT = Chat("m", (Message("user", "hi"),), stream=True, include_usage=True)
ASKED = {"model": "m", "contents": "hi"}
USAGE = Usage(1, 1)


# Integers beyond 64 bits come back as floats, which the splice takes for equal.
arguments = arguments_with(st.integers(-(2**63), 2**63))


@st.composite
def replies(draw, arguments=arguments):
    calls = tuple(draw(st.lists(tool_calls(arguments), max_size=3)))
    message = Message("assistant", draw(texts), draw(st.none() | texts.filter(bool)), calls)
    finish_reason = draw(st.sampled_from(["tool_calls", "length"] if calls else ["stop", "length"]))
    counts = st.integers(0, 9999)
    sampled = draw(counts)
    thought = draw(st.integers(0, sampled))
    return Reply(message, finish_reason, Usage(draw(counts), sampled, draw(counts), thought))


class Playback(httpx.BaseTransport):
    """Answers every request with the same response, and keeps the last request."""

    def __init__(self):
        self.status, self.body, self.content_type = 500, b"", "application/json"
        self.request = None

    def handle_request(self, request):
        request.read()
        self.request = request
        headers = {"content-type": self.content_type}
        return httpx.Response(self.status, content=self.body, headers=headers)


PLAYBACK = Playback()
SDK = genai.Client(
    api_key="k",
    http_options=types.HttpOptions(
        base_url="http://test", httpx_client=httpx.Client(transport=PLAYBACK)
    ),
)


def client(body: bytes, content_type="application/json", status=200) -> genai.Client:
    """Google's client, for which every answer is the same."""
    PLAYBACK.status, PLAYBACK.body, PLAYBACK.content_type = status, body, content_type
    return SDK


def response_of(reply: Reply) -> bytes:
    return DIALECT.response(CHAT, reply, response_id="r", created=5)


def whole(reply: Reply):
    """All that the client makes of a whole response."""
    return [client(response_of(reply)).models.generate_content(**ASKED)]


def stream_of(reply: Reply, deltas) -> bytes:
    """Encode a stream with a no-op after every piece."""
    encoder = DIALECT.encoder(CHAT, response_id="r", created=5)
    body = [encoder.start(), encoder.keepalive()]
    for delta in deltas:
        body += [encoder.delta(delta), encoder.keepalive()]
    return b"".join([*body, encoder.end(reply)])


def streamed(reply: Reply, deltas):
    """All that the client makes of a stream: a response for each chunk."""
    sdk = client(stream_of(reply, deltas), "text/event-stream")
    return list(sdk.models.generate_content_stream(**ASKED))


def parts_of(responses):
    return [part for response in responses for part in response.candidates[0].content.parts]


def understood(responses):
    """Add up what a client was told, whatever it was cut into."""
    parts, last = parts_of(responses), responses[-1]
    return {
        "content": "".join(part.text or "" for part in parts if not part.thought),
        "reasoning": "".join(part.text or "" for part in parts if part.thought),
        "thought_signatures": [
            part.thought_signature for part in parts if part.thought and part.thought_signature
        ],
        "calls": [
            (part.function_call.model_dump(), part.thought_signature)
            for part in parts
            if part.function_call
        ],
        "finish": last.candidates[0].finish_reason,
        "usage": last.usage_metadata.model_dump(exclude_none=True),
        "about": {(response.model_version, response.response_id) for response in responses},
    }


def parsed() -> Chat:
    """Read the client's last request the way the gateway does."""
    request = PLAYBACK.request
    for route in DIALECT.routes:
        if found := re.fullmatch(route.pattern, request.url.path):
            return DIALECT.parse(request.content, found.groupdict())
    raise AssertionError(request.url)


def read_back(contents) -> Chat:
    """Send contents through the client and read the request that it makes of them."""
    sdk = client(response_of(Reply(Message("assistant", "x"), "stop", USAGE)))
    sdk.models.generate_content(model="m", contents=[user("hi"), *contents, user("go on")])
    return parsed()


def user(text):
    return types.Content(role="user", parts=[types.Part(text=text)])


def contents_of(responses):
    return [response.candidates[0].content for response in responses]


def normal(message: Message):
    """Take a message apart, with arguments compared as JSON."""
    calls = [(call.id, call.name, json.loads(call.arguments)) for call in message.tool_calls]
    return message.content, message.reasoning, calls


def finish_messages(reply):
    """Read the finish message, which this client leaves out, from a whole reply and a stream."""
    *_, last, _ = stream_of(reply, []).split(b"\n\n")
    bodies = (response_of(reply), last.removeprefix(b"data: "))
    return {json.loads(body)["candidates"][0].get("finishMessage") for body in bodies}


def with_call(arguments, finish_reason="tool_calls"):
    call = ToolCall("call_1", "bash", arguments)
    return Reply(Message("assistant", "", None, (call,)), finish_reason, USAGE)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_whole_reply_and_its_stream_are_the_same_to_the_client(data):
    reply = data.draw(replies(arguments | not_objects))
    deltas = list(deltas_of(data.draw, reply.message))
    assert understood(whole(reply)) == understood(streamed(reply, deltas))


@given(replies())
@settings(max_examples=60, deadline=None)
def test_a_reply_is_to_the_client_what_was_sampled(reply):
    seen, message, usage = understood(whole(reply)), reply.message, reply.usage
    assert seen["content"] == message.content
    assert seen["reasoning"] == (message.reasoning or "")
    assert [(call["id"], call["name"], call["args"]) for call, _ in seen["calls"]] == [
        (call.id, call.name, json.loads(call.arguments)) for call in message.tool_calls
    ]
    expected = "MAX_TOKENS" if reply.finish_reason == "length" else "STOP"
    assert seen["finish"] == expected
    assert seen["usage"] == {
        "prompt_token_count": usage.prompt_tokens,
        "candidates_token_count": usage.sampled_tokens - usage.reasoning_tokens,
        "thoughts_token_count": usage.reasoning_tokens,
        "cached_content_token_count": usage.cached_tokens,
        "total_token_count": usage.prompt_tokens + usage.sampled_tokens,
    }
    assert seen["about"] == {("m", "r")}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_the_client_sends_back_is_one_turn_as_it_was_sampled(data):
    reply = data.draw(replies())
    deltas = list(deltas_of(data.draw, reply.message))
    for responses in (whole(reply), streamed(reply, deltas)):
        messages = read_back(contents_of(responses)).messages
        assert [message.role for message in messages] == ["user", "assistant", "user"]
        assert normal(messages[1]) == normal(reply.message)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_turn_without_thoughts_signatures_and_ids_is_the_same_but_for_these(data):
    reply = data.draw(replies())
    kept = [part for part in parts_of(whole(reply)) if not part.thought]
    for part in kept:
        part.thought_signature = None
        if part.function_call:
            part.function_call.id = None
    first = read_back([types.Content(role="model", parts=kept)])
    content, _, calls = normal(first.messages[1])
    assert content == reply.message.content
    assert [call[1:] for call in calls] == [call[1:] for call in normal(reply.message)[2]]
    assert len({call[0] for call in calls}) == len(calls)
    assert read_back([types.Content(role="model", parts=kept)]) == first


def test_a_chat_of_the_client_sends_its_history_as_one_turn():
    reply = Reply(Message("assistant", "some text", "because"), "stop", USAGE)
    deltas = [ReasoningDelta("because"), TextDelta("some "), TextDelta("text")]
    chat = client(stream_of(reply, deltas), "text/event-stream").chats.create(model="m")
    for words in ("one", "two"):
        assert list(chat.send_message_stream(words))
    sent = parsed()
    assert sent.messages == (Message("user", "one"), reply.message, Message("user", "two"))
    assert sent.stream


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_every_chunk_holds_one_part_and_only_the_last_one_calls(data):
    """Gemini CLI reads nothing behind a thought, and drops chunks with some empty text."""
    reply = data.draw(replies())
    *chunks, last = streamed(reply, deltas_of(data.draw, reply.message))
    for chunk in chunks:
        (part,) = chunk.candidates[0].content.parts
        assert part.text is not None
        assert part.function_call is None
        assert chunk.candidates[0].finish_reason is chunk.usage_metadata is None
    parts = last.candidates[0].content.parts
    assert len(parts) == max(len(reply.message.tool_calls), 1)
    assert all(part.text is None for part in parts) or parts == [types.Part(text="")]


@given(not_objects, st.data())
@settings(max_examples=40, deadline=None)
def test_arguments_that_are_no_object_are_told_and_never_called(arguments, data):
    """What is no object is neither lost nor becomes `{}`, and nothing runs beside it."""
    calls = (ToolCall("1", "ls", "{}"), ToolCall("2", "bash", arguments))
    reply = Reply(Message("assistant", "text", None, calls), "tool_calls", USAGE)
    for responses in (whole(reply), streamed(reply, deltas_of(data.draw, reply.message))):
        seen = understood(responses)
        assert (seen["content"], seen["calls"]) == ("text", [])
        assert seen["finish"] == "MALFORMED_FUNCTION_CALL"
    told = f"Malformed function call: ls({{}})\nbash({arguments})"
    assert finish_messages(reply) == {told}


def test_a_call_that_is_cut_by_length_is_told_to_be_cut():
    """claude-code#19143: the reply stopped before the last piece of the arguments."""
    cut = with_call('{"command": "rm -r', "length")
    seen = understood(whole(cut))
    assert (seen["calls"], seen["finish"]) == ([], "MAX_TOKENS")
    assert finish_messages(cut) == {'Malformed function call: bash({"command": "rm -r)'}


def test_a_sound_reply_has_no_finish_message():
    assert finish_messages(with_call("{}")) == {None}


def test_a_call_that_is_whole_is_given_though_the_reply_was_cut():
    assert len(understood(whole(with_call("{}", "length")))["calls"]) == 1


def test_arguments_keep_their_numbers_and_their_order():
    reply = with_call('{"b": 60000.0,\n "a": 123456789012345678901234567890}')
    written = b'"args":{"b": 60000.0, "a": 123456789012345678901234567890}'
    assert written in response_of(reply)
    assert written in stream_of(reply, [])


@pytest.mark.parametrize(
    "arguments", ['{"a": ' * 1010 + "1" + "}" * 1010, '{"a": ' + "9" * 5000 + "}"]
)
def test_arguments_beyond_what_can_be_read_are_malformed_and_not_an_error(arguments):
    assert understood(whole(with_call(arguments)))["finish"] == "MALFORMED_FUNCTION_CALL"


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085"])
def test_a_line_break_of_unicode_is_escaped_wherever_it_is(character):
    """Raw in a stream's data, it breaks Gemini CLI's parser."""
    reply = with_call(json.dumps({"a": character}, ensure_ascii=False))
    body = stream_of(reply, [ReasoningDelta(character), TextDelta(character)])
    assert character.encode() not in body
    assert understood(streamed(reply, []))["calls"][0][0]["args"] == {"a": character}


def test_signatures_are_base64_that_depends_on_the_content_alone():
    calls = (ToolCall("1", "bash", '{"a": 1}'), ToolCall("2", "bash", '{"a": 2}'))
    message = Message("assistant", "", "why not", calls)
    reply = Reply(message, "tool_calls", USAGE)
    other = Reply(Message("assistant", "", "why"), "stop", USAGE)
    thought, first, second = json.loads(response_of(reply))["candidates"][0]["content"]["parts"]
    assert "thoughtSignature" not in second
    for signature in (thought["thoughtSignature"], first["thoughtSignature"]):
        assert re.fullmatch("[A-Za-z0-9]{32}", signature)
        assert base64.b64decode(signature, validate=True)
    cut = [ReasoningDelta("wh"), ReasoningDelta("y "), ReasoningDelta("not")]
    signed = understood(streamed(reply, cut))
    assert signed["thought_signatures"] == understood(whole(reply))["thought_signatures"]
    assert signed["thought_signatures"] != understood(whole(other))["thought_signatures"]


def test_the_thought_is_signed_as_soon_as_it_ends():
    encoder = DIALECT.encoder(CHAT, response_id="r", created=5)
    assert b"Signature" not in encoder.start() + encoder.delta(ReasoningDelta("why"))
    assert encoder.delta(ToolCallStart(0, "1", "bash")).count(b"thoughtSignature") == 1
    assert encoder.delta(ToolArgumentsDelta(0, "{}")) == b""


def test_pieces_without_text_are_not_sent():
    encoder = DIALECT.encoder(CHAT, response_id="r", created=5)
    assert encoder.delta(TextDelta("")) == encoder.delta(ReasoningDelta("")) == b""


def test_an_empty_reply_is_empty_text():
    reply = Reply(Message("assistant", ""), "stop", USAGE)
    assert parts_of(whole(reply)) == [types.Part(text="")]
    assert understood(whole(reply)) == understood(streamed(reply, []))


def test_the_client_counts_tokens():
    """verifiers#1669: a harness asked for a count and got an error."""
    assert isinstance(DIALECT, CountsTokens)
    assert client(DIALECT.count(12)).models.count_tokens(**ASKED).total_tokens == 12
    assert parsed().messages == (Message("user", "hi"),)


def test_the_client_lists_the_model_with_what_it_can_do():
    sdk = client(DIALECT.models("some/model", created=5))
    (model,) = sdk.models.list(config={"http_options": {"api_version": "v1beta"}})
    assert model.name == "models/some/model"
    assert model.supported_actions == ["generateContent", "streamGenerateContent", "countTokens"]
    assert PLAYBACK.request.url.path == "/v1beta/models"


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (BadRequest("no", where="contents"), 400, "INVALID_ARGUMENT"),
        (Unauthorized("who"), 401, "UNAUTHENTICATED"),
        (UnknownRoute("where"), 404, "NOT_FOUND"),
        (RequestTooLarge("big"), 413, "INVALID_ARGUMENT"),
        (PolarError("broken"), 500, "INTERNAL"),
        (EngineError("down"), 503, "UNAVAILABLE"),
    ],
)
def test_the_client_raises_its_own_error(error, code, status):
    found, body = DIALECT.error(error)
    kind = errors.ClientError if code < 500 else errors.ServerError
    with pytest.raises(kind) as caught:
        client(body, status=found).models.generate_content(**ASKED)
    assert (caught.value.code, caught.value.status) == (code, status)
    assert caught.value.message == str(error)


def test_an_overflow_is_told_in_the_words_that_clients_know():
    _, body = DIALECT.error(ContextOverflow(prompt_tokens=1234, max_context=1000))
    assert json.loads(body)["error"] == {
        "code": 400,
        "message": "The input token count (1234) exceeds the maximum number of tokens "
        "allowed (1000).",
        "status": "INVALID_ARGUMENT",
    }


def test_the_client_raises_on_an_error_in_a_stream():
    encoder = DIALECT.encoder(CHAT, response_id="r", created=5)
    body = encoder.start() + encoder.error(EngineError("engine gone"))
    chunks = client(body, "text/event-stream").models.generate_content_stream(**ASKED)
    with pytest.raises(errors.ServerError, match="engine gone"):
        list(chunks)


def test_calls_are_in_whole_replies_and_at_the_end_of_streams():
    """AIClient2API#472, agency-swarm#633: calls were missing where they were not streamed."""
    reply = with_call('{"a": 1}')
    for responses in (whole(reply), streamed(reply, [ToolCallStart(0, "call_1", "bash")])):
        (call,) = responses[-1].function_calls
        assert (call.id, call.name, call.args) == ("call_1", "bash", {"a": 1})


def test_arguments_that_no_delta_told_are_not_empty():
    """openclaude#1259: arguments that came only at the end were taken for `{}`."""
    seen = understood(streamed(with_call('{"a": 1}'), [ToolCallStart(0, "call_1", "bash")]))
    assert seen["calls"][0][0]["args"] == {"a": 1}


def test_a_reply_without_calls_calls_nothing():
    """litellm#29286: an empty list of calls made tool deltas."""
    reply = Reply(Message("assistant", "x"), "stop", USAGE)
    assert b"functionCall" not in response_of(reply) + stream_of(reply, [TextDelta("x")])


def test_reasoning_is_streamed_while_it_is_sampled():
    """litellm#20246: reasoning was missing from streams."""
    encoder = DIALECT.encoder(CHAT, response_id="r", created=5)
    assert b'{"text":"why","thought":true}' in encoder.delta(ReasoningDelta("why"))


def test_reasoning_before_parallel_calls_is_kept():
    """ai-sdk-provider#339: thinking was lost when several tools were called at once."""
    calls = tuple(ToolCall(f"call_{n}", "bash", f'{{"n": {n}}}') for n in range(2))
    reply = Reply(Message("assistant", "", "because", calls), "tool_calls", USAGE)
    deltas = [ReasoningDelta("because")]
    for n, call in enumerate(calls):
        deltas += [ToolCallStart(n, call.id, call.name), ToolArgumentsDelta(n, call.arguments)]
    for responses in (whole(reply), streamed(reply, deltas)):
        assert read_back(contents_of(responses)).messages[1] == reply.message


def test_signatures_come_back_with_what_they_sign():
    """OmniRoute#2504: the signature of a thought was stripped on the way."""
    call = ToolCall("call_1", "bash", "{}")
    reply = Reply(Message("assistant", "", "because", (call,)), "tool_calls", USAGE)
    contents = contents_of(streamed(reply, [ReasoningDelta("because")]))
    assert read_back(contents).messages[1] == reply.message
    for part in json.loads(response_of(reply))["candidates"][0]["content"]["parts"]:
        assert part["thoughtSignature"].encode() in PLAYBACK.request.content
