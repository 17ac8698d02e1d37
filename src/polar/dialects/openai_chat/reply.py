"""Writes Chat Completions responses, whole and streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

import orjson

from polar.dialects.sse import DONE, data_event
from polar.errors import (
    BadRequest,
    ContextOverflow,
    EngineError,
    NoWebSocket,
    PolarError,
    RequestTooLarge,
    RequestTooSlow,
    Unauthorized,
    UnknownRoute,
)
from polar.types import (
    Chat,
    Delta,
    Message,
    ReasoningDelta,
    Reply,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStart,
    Usage,
)

__all__ = [
    "ChoicesEncoder",
    "ChunkEncoder",
    "write_error",
    "write_model",
    "write_models",
    "write_response",
]

_ERRORS: tuple[tuple[type[PolarError], tuple[int, str, str | None]], ...] = (
    (ContextOverflow, (400, "invalid_request_error", "context_length_exceeded")),
    (RequestTooLarge, (413, "invalid_request_error", "request_too_large")),
    (RequestTooSlow, (408, "invalid_request_error", "request_timeout")),
    (BadRequest, (400, "invalid_request_error", None)),
    (Unauthorized, (401, "invalid_request_error", "invalid_api_key")),
    (NoWebSocket, (426, "invalid_request_error", "websocket_not_supported")),
    (UnknownRoute, (404, "invalid_request_error", "unknown_url")),
    (EngineError, (503, "server_error", "engine_unavailable")),
    (PolarError, (500, "server_error", None)),
)
"""Error -> HTTP status, type and code; the first that fits."""


def write_response(
    chat: Chat, replies: Sequence[Reply], *, response_id: str, created: int
) -> bytes:
    """Write a whole response."""
    choices = [
        {
            "index": index,
            "message": _message(reply.message),
            "logprobs": None,
            "finish_reason": reply.finish_reason,
        }
        for index, reply in enumerate(replies)
    ]
    return orjson.dumps(
        {
            "id": response_id,
            "object": "chat.completion",
            "created": created,
            "model": chat.model,
            "choices": choices,
            "usage": _usage(Usage.of_choices([reply.usage for reply in replies])),
        }
    )


def write_models(model: str, *, created: int) -> bytes:
    """Write the list of models."""
    return orjson.dumps({"object": "list", "data": [_model(model, created)]})


def write_model(model: str, *, created: int) -> bytes:
    """Write one model."""
    return orjson.dumps(_model(model, created))


def write_error(error: PolarError) -> tuple[int, bytes]:
    """Write an error as HTTP status and body."""
    status, body = _error(error)
    return status, orjson.dumps(body)


class ChunkEncoder:
    """Encodes one reply as `chat.completion.chunk` events."""

    def __init__(self, chat: Chat, *, response_id: str, created: int, index: int = 0) -> None:
        self._index = index
        self._include_usage = chat.include_usage
        self._head = {
            "id": response_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": chat.model,
        }

    def start(self) -> bytes:
        """Encode the chunk that opens the assistant's message."""
        return self._chunk({"role": "assistant", "content": ""})

    def keepalive(self) -> bytes:
        """Encode a chunk that adds nothing."""
        return self._chunk({})

    def delta(self, delta: Delta) -> bytes:
        """Encode a piece of the reply."""
        return self._chunk(_delta(delta))

    def end(self, reply: Reply) -> bytes:
        """Encode the finish reason, the usage if it was asked for, and the terminal event."""
        return self.finish(reply) + self.close(reply.usage)

    def finish(self, reply: Reply) -> bytes:
        """Encode the finish reason."""
        return self._chunk({}, finish_reason=reply.finish_reason)

    def close(self, usage: Usage) -> bytes:
        """Encode the usage if it was asked for, and the terminal event."""
        if not self._include_usage:
            return DONE
        return data_event({**self._head, "choices": [], "usage": _usage(usage)}) + DONE

    def error(self, error: PolarError) -> bytes:
        """Encode an error event."""
        return data_event(_error(error)[1])

    def _chunk(self, delta: dict[str, Any], *, finish_reason: str | None = None) -> bytes:
        choice = {
            "index": self._index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        chunk = {**self._head, "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return data_event(chunk)


class ChoicesEncoder:
    """Encodes several replies, told apart by their index."""

    def __init__(self, chat: Chat, *, response_id: str, created: int) -> None:
        self.each = tuple(
            ChunkEncoder(chat, response_id=response_id, created=created, index=index)
            for index in range(chat.choices)
        )

    def end(self, replies: Sequence[Reply]) -> bytes:
        """Encode each finish reason, the usage of all, and the terminal event."""
        pairs = zip(self.each, replies, strict=True)
        finished = b"".join(encoder.finish(reply) for encoder, reply in pairs)
        return finished + self.each[0].close(Usage.of_choices([reply.usage for reply in replies]))


def _model(model: str, created: int) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": created, "owned_by": "polar"}


def _delta(delta: Delta) -> dict[str, Any]:
    match delta:
        case TextDelta(text=text):
            return {"content": text}
        case ReasoningDelta(text=text):
            return {"reasoning_content": text}
        case ToolCallStart(index=index, id=call_id, name=name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ToolArgumentsDelta(index=index, text=text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case _:
            assert_never(delta)


def _message(message: Message) -> dict[str, Any]:
    silent = message.tool_calls and not message.content
    written: dict[str, Any] = {
        "role": "assistant",
        "content": None if silent else message.content,
        "refusal": None,
    }
    if message.reasoning is not None:
        written["reasoning_content"] = message.reasoning
    if message.tool_calls:
        written["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    return written


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.sampled_tokens,
        "total_tokens": usage.prompt_tokens + usage.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _error(error: PolarError) -> tuple[int, dict[str, Any]]:
    status, kind, code = next(form for class_, form in _ERRORS if isinstance(error, class_))
    fields = {
        "message": str(error),
        "type": kind,
        "param": error.where if isinstance(error, BadRequest) else None,
        "code": code,
    }
    return status, {"error": fields}
