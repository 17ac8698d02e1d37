"""Writes Messages responses, whole and streamed."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from polar.dialects.anthropic_messages.errors import write_error
from polar.dialects.anthropic_messages.tool_input import write_input
from polar.dialects.sse import named_event
from polar.errors import PolarError
from polar.types import Chat, Delta, FinishReason, ReasoningDelta, Reply, TextDelta, ToolCall, Usage

__all__ = ["EventEncoder", "write_model", "write_models", "write_response"]

_STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}
"""The other ways to finish make no reply."""

_NEW_BLOCKS: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


def write_response(chat: Chat, reply: Reply, *, response_id: str) -> bytes:
    """Write a whole response."""
    message = reply.message
    content: list[dict[str, Any]] = []
    if message.reasoning:
        signature = _Signature()
        signature.add(message.reasoning)
        thinking = {"thinking": message.reasoning, "signature": signature.text()}
        content.append({"type": "thinking", **thinking})
    if message.content:
        content.append({"type": "text", "text": message.content})
    for call in message.tool_calls:
        name, text = write_input(call)
        # As sampled: numbers and the order of keys are the same as in a stream.
        given = orjson.Fragment(text)
        content.append({"type": "tool_use", "id": call.id, "name": name, "input": given})
    whole = _message(chat, response_id, content, usage=_usage(reply.usage))
    return orjson.dumps({**whole, **_stop(reply)})


def write_models(model: str, *, created: int) -> bytes:
    """Write the list of models."""
    entry = _model(model, created)
    page = {"data": [entry], "first_id": model, "last_id": model, "has_more": False}
    return orjson.dumps(page)


def write_model(model: str, *, created: int) -> bytes:
    """Write one model."""
    return orjson.dumps(_model(model, created))


class EventEncoder:
    """Encodes one reply as the named events of a Messages stream.

    Text and reasoning are sent as they come, each in blocks of its own. Tool calls are sent from
    the finished reply: only whole arguments can be known to be an object, and a harness that runs
    a call when its block is complete then never runs one that is not on record.
    """

    def __init__(self, chat: Chat, *, response_id: str, prompt_tokens: int = 0) -> None:
        self._chat = chat
        self._prompt_tokens = prompt_tokens
        self._response_id = response_id
        self._index = 0
        self._open: Literal["text", "thinking"] | None = None
        self._signature = _Signature()

    def start(self) -> bytes:
        """Encode the event that opens the message; some clients read the prompt's length here.

        How much of it the engine had in its cache is only known later: `end` tells it.
        """
        usage = _usage(Usage(prompt_tokens=self._prompt_tokens, sampled_tokens=0))
        return _event("message_start", message=_message(self._chat, self._response_id, [], usage))

    def keepalive(self) -> bytes:
        """Encode a ping."""
        return _event("ping")

    def delta(self, delta: Delta) -> bytes:
        """Encode a piece of the reply; for pieces of a tool call, a sign of life."""
        match delta:
            case TextDelta(text=text) if text:
                return self._enter("text") + self._say("text_delta", text=text)
            case ReasoningDelta(text=text) if text:
                entered = self._enter("thinking")
                self._signature.add(text)
                return entered + self._say("thinking_delta", thinking=text)
            case _:
                return self.keepalive()

    def end(self, reply: Reply) -> bytes:
        """Encode the tool calls, the stop reason, the usage and the terminal event."""
        closed = self._close()
        calls = b"".join(map(self._tool_use, reply.message.tool_calls))
        usage = _usage(reply.usage)
        stopped = _event("message_delta", delta=_stop(reply), usage=usage)
        return closed + calls + stopped + _event("message_stop")

    def error(self, error: PolarError) -> bytes:
        """Encode an error event."""
        return named_event("error", write_error(error)[1])

    def _enter(self, kind: Literal["text", "thinking"]) -> bytes:
        """Open a block unless one of this kind is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._open = kind
        self._signature = _Signature()
        return closed + self._begin(_NEW_BLOCKS[kind])

    def _close(self) -> bytes:
        """Close the block that is open, if any."""
        signed = b""
        if self._open == "thinking":
            signed = self._say("signature_delta", signature=self._signature.text())
        return b"" if self._open is None else signed + self._finish()

    def _tool_use(self, call: ToolCall) -> bytes:
        name, text = write_input(call)
        begun = self._begin({"type": "tool_use", "id": call.id, "name": name, "input": {}})
        return begun + self._say("input_json_delta", partial_json=text) + self._finish()

    def _begin(self, block: dict[str, Any]) -> bytes:
        return _event("content_block_start", index=self._index, content_block=block)

    def _say(self, kind: str, **fields: str) -> bytes:
        delta = {"type": kind, **fields}
        return _event("content_block_delta", index=self._index, delta=delta)

    def _finish(self) -> bytes:
        stopped = _event("content_block_stop", index=self._index)
        self._open = None
        self._index += 1
        return stopped


class _Signature:
    """What marks a thinking block as ours: a function of its text alone, however it was cut.

    Clients give up reasoning without one, and send one back as it is; nothing else depends on it.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=24)

    def add(self, text: str) -> None:
        self._hash.update(text.encode())

    def text(self) -> str:
        return base64.b64encode(self._hash.digest()).decode()


def _model(model: str, created: int) -> dict[str, str]:
    return {
        "type": "model",
        "id": model,
        "display_name": model,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
    }


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind, **fields})


def _message(
    chat: Chat, response_id: str, content: list[dict[str, Any]], usage: dict[str, int]
) -> dict[str, Any]:
    return {
        "id": response_id,
        "type": "message",
        "role": "assistant",
        "model": chat.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _stop(reply: Reply) -> dict[str, str | None]:
    cut = reply.stop_string is not None
    reason = "stop_sequence" if cut else _STOP_REASONS[reply.finish_reason]
    return {"stop_reason": reason, "stop_sequence": reply.stop_string}


def _usage(usage: Usage) -> dict[str, int]:
    """Write token counts; the cached part of the prompt is not in `input_tokens` here."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.sampled_tokens,
    }
