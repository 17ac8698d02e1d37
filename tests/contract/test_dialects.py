"""What every dialect does, whatever its wire format."""

import json
import re

import pytest

from polar import dialects
from polar.errors import (
    BadRequest,
    ConfigError,
    ContextOverflow,
    EngineError,
    PolarError,
    ReplyTooLarge,
    RequestTooLarge,
    RequestTooSlow,
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

CHAT = Chat(model="some-model", messages=(Message("user", "hi"),), stream=True, include_usage=True)
REPLY = Reply(
    Message("assistant", "text\u2028more\u0085", "why", (ToolCall("call_1", "bash", '{"a": 1}'),)),
    "tool_calls",
    Usage(prompt_tokens=11, sampled_tokens=7, cached_tokens=3),
)
DELTAS = (
    ReasoningDelta("why"),
    TextDelta("text\u2028"),
    TextDelta("more\u0085"),
    ToolCallStart(0, "call_1", "bash"),
    ToolArgumentsDelta(0, '{"a"'),
    ToolArgumentsDelta(0, ": 1}"),
)


@pytest.fixture(params=dialects.names())
def dialect(request):
    return dialects.load(request.param)


def test_its_name_is_the_one_it_is_found_by(dialect):
    assert dialects.load(dialect.name).name == dialect.name


def test_its_routes_are_patterns_and_one_serves_chats(dialect):
    assert "chat" in {route.serves for route in dialect.routes}
    assert all(re.compile(route.pattern) for route in dialect.routes)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b'{"model": 3}', b"\xff", b"{}"])
def test_what_is_no_request_is_refused(dialect, body):
    with pytest.raises(BadRequest):
        dialect.parse(body)


def test_a_response_is_json_that_names_the_model_asked_for(dialect):
    body = dialect.response(CHAT, REPLY, response_id="r1", created=5)
    assert "some-model" in json.dumps(json.loads(body))


def test_a_stream_is_lines_that_no_client_can_split_wrongly(dialect):
    encoder = dialect.encoder(CHAT, response_id="r1", created=5)
    parts = [encoder.start(), encoder.keepalive(), *map(encoder.delta, DELTAS), encoder.end(REPLY)]
    text = b"".join(parts).decode()
    assert text.splitlines() == text.split("\n")[:-1]
    assert all(not part or part.endswith(b"\n\n") for part in parts)


def test_a_keepalive_is_a_data_event_and_not_a_comment(dialect):
    encoder = dialect.encoder(CHAT, response_id="r1", created=5)
    lines = encoder.keepalive().decode().splitlines()
    assert any(line.startswith("data: {") for line in lines)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadRequest("no", where="messages"), 400),
        (ContextOverflow(prompt_tokens=1234, max_context=1000), 400),
        (Unauthorized("who"), 401),
        (UnknownRoute("where"), 404),
        (RequestTooLarge("big"), 413),
        (RequestTooSlow("late"), 408),
        (ReplyTooLarge("long"), 400),
        (PolarError("broken"), 500),
        (EngineError("down"), 503),
    ],
)
def test_errors_have_the_status_that_steers_clients(dialect, error, status):
    found, body = dialect.error(error)
    assert found == status
    said = json.dumps(json.loads(body))
    # Providers have a sentence of their own for an overflow, which clients know by heart.
    wanted = ("1234", "1000") if isinstance(error, ContextOverflow) else (error.what,)
    assert all(part in said for part in wanted)


def test_an_error_in_a_stream_says_what_went_wrong(dialect):
    encoder = dialect.encoder(CHAT, response_id="r1", created=5)
    assert b"engine gone" in encoder.error(EngineError("engine gone"))


def test_models_lists_the_one_model(dialect):
    assert b"some-model" in dialect.models("some-model", created=5)


def test_one_model_is_described_under_the_name_that_was_asked_for(dialect):
    described = json.loads(dialect.model("any-name", created=5))
    assert "any-name" in (described.get("id"), described.get("displayName"))


def test_an_unknown_dialect_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="Did you mean `openai_chat`"):
        dialects.load("openai_chatt")
    with pytest.raises(ConfigError, match="Use one of"):
        dialects.load("zzz")
