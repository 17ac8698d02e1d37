"""Writes generateContent responses, whole and streamed.

A function call of Google's is a part with its arguments as a JSON object, so it can only be
written when it is complete; a stream ends with it. If the arguments of any call are no JSON
object (cut short, or never JSON), no call of the reply is given: the finish reason tells that
the reply was cut or that its calls are malformed, and the finish message carries the calls as
they were sampled. Harnesses try again or give up at that; with a sound call beside a malformed
one, some would run the sound one as if it were all that was asked for.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import orjson

from polar.dialects.sse import data_event
from polar.errors import (
    BadRequest,
    ContextOverflow,
    EngineError,
    PolarError,
    RequestTooLarge,
    RequestTooSlow,
    Unauthorized,
    UnknownRoute,
)
from polar.types import (
    Chat,
    Delta,
    FinishReason,
    ReasoningDelta,
    Reply,
    TextDelta,
    ToolCall,
    ToolCallStart,
    Usage,
)

__all__ = [
    "ChoicesEncoder",
    "ChunkEncoder",
    "write_count",
    "write_error",
    "write_model",
    "write_models",
    "write_response",
]

_METHODS = ("generateContent", "streamGenerateContent", "countTokens")
_NOTHING = {"text": ""}

_FINISH: dict[FinishReason, str] = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "abandoned": "OTHER",
    "error": "OTHER",
}

_ERRORS: tuple[tuple[type[PolarError], tuple[int, str]], ...] = (
    (ContextOverflow, (400, "INVALID_ARGUMENT")),
    (RequestTooLarge, (413, "INVALID_ARGUMENT")),
    (RequestTooSlow, (408, "DEADLINE_EXCEEDED")),
    (BadRequest, (400, "INVALID_ARGUMENT")),
    (Unauthorized, (401, "UNAUTHENTICATED")),
    (UnknownRoute, (404, "NOT_FOUND")),
    (EngineError, (503, "UNAVAILABLE")),
    (PolarError, (500, "INTERNAL")),
)
"""Error -> HTTP status and Google's; the first that fits.

A request that is too large is not RESOURCE_EXHAUSTED: clients take that for a rate limit and
send the same again.
"""


def write_response(chat: Chat, replies: Sequence[Reply], *, response_id: str) -> bytes:
    """Write a whole response."""
    candidates = [_candidate(index, _parts(reply), reply) for index, reply in enumerate(replies)]
    return orjson.dumps(
        _head(chat, response_id) | {"candidates": candidates, "usageMetadata": _total(replies)}
    )


def _parts(reply: Reply) -> list[dict[str, Any]]:
    message = reply.message
    parts: list[dict[str, Any]] = []
    if message.reasoning:
        signature = _signature(message.reasoning)
        parts.append({"text": message.reasoning, "thought": True, "thoughtSignature": signature})
    if message.content:
        parts.append({"text": message.content})
    return parts + _calls(message.tool_calls)


def write_count(prompt_tokens: int) -> bytes:
    """Write how many tokens a prompt has."""
    return orjson.dumps({"totalTokens": prompt_tokens})


def write_models(model: str) -> bytes:
    """Write the list of models."""
    return orjson.dumps({"models": [_model(model)]})


def write_model(model: str) -> bytes:
    """Write one model."""
    return orjson.dumps(_model(model))


def write_error(error: PolarError) -> tuple[int, bytes]:
    """Write an error as HTTP status and body."""
    status, body = _error(error)
    return status, orjson.dumps(body)


class ChunkEncoder:
    """Encodes one reply as a series of responses, each with what is new."""

    def __init__(self, chat: Chat, *, response_id: str, index: int = 0) -> None:
        self._head = _head(chat, response_id)
        self._index = index
        self._thought: list[str] = []

    def start(self) -> bytes:
        """Encode a chunk that tells the response's id."""
        return self.keepalive()

    def keepalive(self) -> bytes:
        """Encode a chunk that adds nothing."""
        return self._chunk(_NOTHING)

    def delta(self, delta: Delta) -> bytes:
        """Encode a piece of the reply; nothing for pieces of a call, which is given whole."""
        match delta:
            case ReasoningDelta(text=text) if text:
                self._thought.append(text)
                return self._chunk({"text": text, "thought": True})
            case TextDelta(text=text) if text:
                return self._end_thought() + self._chunk({"text": text})
            case ToolCallStart():
                return self._end_thought()
            case _:
                return b""

    def end(self, reply: Reply) -> bytes:
        """Encode the function calls with the finish reason and the usage."""
        return self.finish(reply, {"usageMetadata": _usage(reply.usage)})

    def finish(self, reply: Reply, more: dict[str, Any]) -> bytes:
        """Encode the function calls with the finish reason and what else the chunk has."""
        last = _candidate(self._index, _calls(reply.message.tool_calls), reply)
        return self._end_thought() + data_event(self._head | {"candidates": [last]} | more)

    def error(self, error: PolarError) -> bytes:
        """Encode an error event."""
        return data_event(_error(error)[1])

    def _end_thought(self) -> bytes:
        """Sign the thought, if there is one, in a chunk of its own.

        Gemini CLI reads nothing more of a chunk that begins with a thought.
        """
        if not self._thought:
            return b""
        signature = _signature("".join(self._thought))
        self._thought.clear()
        return self._chunk({"text": "", "thought": True, "thoughtSignature": signature})

    def _chunk(self, part: dict[str, Any]) -> bytes:
        candidate = {"content": {"role": "model", "parts": [part]}, "index": self._index}
        return data_event(self._head | {"candidates": [candidate]})


class ChoicesEncoder:
    """Encodes several replies as candidates, told apart by their index."""

    def __init__(self, chat: Chat, *, response_id: str) -> None:
        self.each = tuple(
            ChunkEncoder(chat, response_id=response_id, index=index)
            for index in range(chat.choices)
        )

    def end(self, replies: Sequence[Reply]) -> bytes:
        """Encode how each has ended; the last one has the usage of all."""
        last, total = len(replies) - 1, {"usageMetadata": _total(replies)}
        return b"".join(
            encoder.finish(reply, total if index == last else {})
            for index, (encoder, reply) in enumerate(zip(self.each, replies, strict=True))
        )


def _model(model: str) -> dict[str, Any]:
    return {
        "name": f"models/{model}",
        "displayName": model,
        "supportedGenerationMethods": _METHODS,
    }


def _head(chat: Chat, response_id: str) -> dict[str, Any]:
    return {"modelVersion": chat.model, "responseId": response_id}


def _candidate(index: int, parts: list[dict[str, Any]], reply: Reply) -> dict[str, Any]:
    """Write some parts with the finish reason."""
    return {
        "content": {"role": "model", "parts": parts or [_NOTHING]},
        "index": index,
        **_finish(reply),
    }


def _total(replies: Sequence[Reply]) -> dict[str, int]:
    return _usage(Usage.of_choices([reply.usage for reply in replies]))


def _finish(reply: Reply) -> dict[str, str]:
    reason, calls = _FINISH[reply.finish_reason], reply.message.tool_calls
    if all(_object(call.arguments) is not None for call in calls):
        return {"finishReason": reason}
    sampled = "\n".join(f"{call.name}({call.arguments})" for call in calls)
    return {
        "finishReason": "MALFORMED_FUNCTION_CALL" if reason == "STOP" else reason,
        "finishMessage": f"Malformed function call: {sampled}",
    }


def _calls(calls: tuple[ToolCall, ...]) -> list[dict[str, Any]]:
    """Write calls as parts, the first of them signed; none if any is malformed."""
    parts: list[dict[str, Any]] = []
    for call in calls:
        arguments = _object(call.arguments)
        if arguments is None:
            return []
        function = {"id": call.id, "name": call.name, "args": orjson.Fragment(arguments)}
        parts.append({"functionCall": function})
    if calls:
        parts[0]["thoughtSignature"] = _signature(calls[0].name + calls[0].arguments)
    return parts


def _object(text: str) -> str | None:
    """Write the JSON text of an object on one line, with its numbers as they are.

    Returns:
        None if it is not the JSON text of an object.
    """
    try:
        # orjson is strict; json keeps integers of any size.
        return json.dumps(json.loads(text)) if isinstance(orjson.loads(text), dict) else None
    except (ValueError, RecursionError):
        return None


def _signature(text: str) -> str:
    """Make up the opaque mark that Google's clients expect on a thought and on a call.

    Nothing depends on it. It is base64 in both alphabets, for some clients check that, and
    without padding.
    """
    digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    return base64.b64encode(digest.encode()).decode()


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.sampled_tokens - usage.reasoning_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.sampled_tokens,
    }


def _error(error: PolarError) -> tuple[int, dict[str, Any]]:
    code, status = next(form for class_, form in _ERRORS if isinstance(error, class_))
    return code, {"error": {"code": code, "message": _message(error), "status": status}}


def _message(error: PolarError) -> str:
    if isinstance(error, ContextOverflow):
        # Clients know this sentence and compact their history when they see it.
        return (
            f"The input token count ({error.prompt_tokens}) exceeds the maximum number of "
            f"tokens allowed ({error.max_context})."
        )
    return str(error)
