"""Chat Completions as a client writes and reads them: requests, refusals, the events of a stream.

Source: OpenAI's API reference for the form; vLLM 0.32 for token ids (`return_token_ids`) and for
how a prompt that is too long is refused; llama.cpp's server for its own way to refuse it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Literal

import orjson

from polar.engines.base import Chunk
from polar.engines.servers import event_data
from polar.errors import (
    BadRequest,
    ContextOverflow,
    EngineError,
    EngineRefused,
    PolarError,
    ServerFailed,
)
from polar.rendering.function_form import tool_fields
from polar.rendering.hermes import call_text, tools_section
from polar.types import (
    Chat,
    Delta,
    Message,
    ReasoningDelta,
    Sampling,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallStart,
    Usage,
)

__all__ = ["Event", "EventReader", "Form", "chat_body", "read_refusal"]

_ENDINGS: Mapping[str, Literal["stop", "length"]] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
}
_BAD = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_UNREADABLE = HTTPStatus.UNPROCESSABLE_ENTITY
_KEY = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_TOO_LONG = ("context_length_exceeded", "exceed_context_size_error", "input_tokens", "max_tokens")
"""What errors of a prompt that is too long have as code, type or parameter."""
_LENGTH = re.compile(r"(\d+) input tokens")


@dataclass(frozen=True, slots=True)
class Form:
    """How a server is asked."""

    ids: bool
    """Whether for token ids and logprobs."""
    tools: Literal["auto", "none", "text"] = "auto"
    """`auto`: the server parses calls. `none`: it shows the model the tools, and Polar parses.
    `text`: its template shows none, so they are written into the messages."""
    limit_field: str = "max_tokens"


@dataclass(frozen=True, slots=True)
class Event:
    """What one event of a stream tells."""

    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    deltas: tuple[Delta, ...] = ()
    finish_reason: Literal["stop", "length"] | None = None
    usage: Usage | None = None

    def chunk(self) -> Chunk | None:
        """Give what is new of the reply; nothing where that is nothing."""
        if not (self.prompt_ids or self.token_ids or self.deltas):
            return None
        return Chunk(
            self.token_ids, self.logprobs, 0, prompt_ids=self.prompt_ids, deltas=self.deltas
        )


def chat_body(
    chat: Chat, sampling: Sampling, *, model: str, form: Form, max_context: int
) -> dict[str, Any]:
    """Write a request for a stream. Stop strings are left out: the gateway applies them.

    Args:
        chat: The conversation.
        sampling: How to sample; a limit that leaves room for one token of prompt is none.
        model: The name that the model is served under.
        form: How the server is asked.
        max_context: The model's window.
    """
    shown = _with_tools(chat) if form.tools == "text" else chat.messages
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(each, form) for each in shown],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if chat.tools and form.tools != "text":
        body |= {"tools": [tool_fields(tool) for tool in chat.tools], "tool_choice": form.tools}
    limit = sampling.max_tokens
    if limit is not None and limit < max_context - 1:
        body[form.limit_field] = limit
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body | (_exact_sampling(sampling) if form.ids else _plain_sampling(sampling))


def read_refusal(status: int, body: bytes, *, max_context: int) -> PolarError | None:
    """Tell what a harness can act on from what it cannot; None: a failure like any server's.

    Args:
        status: The answer's.
        body: The answer's.
        max_context: The model's window; 0 while it is not known.
    """
    if status in _KEY:
        return EngineRefused(
            f"the server does not take the key ({status})",
            fix="Set engine.settings.api_key_env to the variable that holds it.",
        )
    if status not in (*_BAD, _UNREADABLE):
        return None
    error = _error(body)
    said = _said(error)
    if any(error.get(name) in _TOO_LONG for name in ("code", "type", "param")):
        told = error.get("n_prompt_tokens") or next(iter(_LENGTH.findall(said)), None)
        at_least = max_context + 1 if told is None else int(told)
        return ContextOverflow(prompt_tokens=at_least, max_context=max_context)
    return BadRequest(f"the model's server refuses the request: {said or 'no reason given'}")


@dataclass(slots=True)
class EventReader:
    """Reads the lines of one stream."""

    ids: bool
    """Whether ids are read; otherwise the server's own reading of the reply is."""
    _places: dict[int, int] = field(default_factory=dict)
    """The server's number of a tool call -> how many came before it."""

    def read(self, line: bytes) -> Event | None:
        """Read a line; nothing where it says nothing.

        Raises:
            ServerFailed: It tells of an error.
            ServerLost: It is torn.
            EngineError: It is not of the form of Chat Completions.
        """
        fields = event_data(line)
        if fields is None:
            return None
        try:
            if fields.get("error"):
                said = _said(_error(orjson.dumps(fields)))
                raise ServerFailed(f"the server broke the reply off: {said}")
            return self._event(fields)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(
                f"the server's stream is not of the form of Chat Completions: {error!r}"
            ) from error

    def _event(self, fields: dict[str, Any]) -> Event:
        usage = fields.get("usage")
        event = Event(
            prompt_ids=tuple(fields.get("prompt_token_ids") or ()) if self.ids else (),
            usage=_usage(usage) if usage else None,
        )
        choices = fields.get("choices") or ()
        return self._choice(event, choices[0]) if choices else event

    def _choice(self, event: Event, choice: dict[str, Any]) -> Event:
        reason = choice.get("finish_reason")
        if reason is not None and reason not in _ENDINGS:
            raise EngineError(f"the server ended the reply for the reason '{reason}'")
        if reason is not None:
            event = replace(event, finish_reason=_ENDINGS[reason])
        if not self.ids:
            return replace(event, deltas=tuple(self._deltas(choice.get("delta") or {})))
        told = (choice.get("logprobs") or {}).get("content") or ()
        return replace(
            event,
            token_ids=tuple(choice.get("token_ids") or ()),
            logprobs=tuple(float(each["logprob"]) for each in told),
        )

    def _deltas(self, delta: dict[str, Any]) -> Iterator[Delta]:
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            yield ReasoningDelta(thought)
        if text := delta.get("content"):
            yield TextDelta(text)
        for call in delta.get("tool_calls") or ():
            number, function = int(call.get("index") or 0), call.get("function") or {}
            if number not in self._places:
                self._places[number] = len(self._places)
                yield ToolCallStart(self._places[number], call["id"], function["name"])
            if arguments := function.get("arguments"):
                yield ToolArgumentsDelta(self._places[number], arguments)


def _exact_sampling(sampling: Sampling) -> dict[str, Any]:
    """Leave nothing to the server's defaults, which a model's `generation_config` may change."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "return_token_ids": True,
        "logprobs": True,
    }


def _plain_sampling(sampling: Sampling) -> dict[str, Any]:
    """Say only what differs from what servers do unasked: some know nothing else."""
    asked: dict[str, Any] = {}
    if sampling.temperature != 1.0:
        asked["temperature"] = sampling.temperature
    if sampling.top_p != 1.0:
        asked["top_p"] = sampling.top_p
    if sampling.top_k is not None:
        asked["top_k"] = sampling.top_k
    return asked


def _with_tools(chat: Chat) -> tuple[Message, ...]:
    """Write tools, calls and results into the text, for a model whose template has none."""
    messages = tuple(map(_as_text, chat.messages))
    if not chat.tools:
        return messages
    section = tools_section(chat.tools)
    if messages and messages[0].role == "system":
        first = replace(messages[0], content=f"{messages[0].content}\n\n{section}")
        return (first, *messages[1:])
    return (Message("system", section), *messages)


def _as_text(message: Message) -> Message:
    if message.role == "tool":
        return Message("user", f"<tool_response>\n{message.content}\n</tool_response>")
    if not message.tool_calls:
        return message
    blocks = [call_text(call) for call in message.tool_calls]
    content = "\n".join([message.content, *blocks] if message.content else blocks)
    return replace(message, content=content, tool_calls=())


def _message(message: Message, form: Form) -> dict[str, Any]:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in message.tool_calls
    ]
    optional = {
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning,
        "reasoning": message.reasoning if form.ids else None,
        "tool_calls": calls or None,
    }
    silent = message.tool_calls and not message.content
    written = {"role": message.role, "content": None if silent else message.content}
    return written | {name: value for name, value in optional.items() if value is not None}


def _usage(fields: dict[str, Any]) -> Usage:
    details = fields.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=int(fields["prompt_tokens"]),
        sampled_tokens=int(fields["completion_tokens"]),
        cached_tokens=int(details.get("cached_tokens") or 0),
    )


def _error(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except ValueError:
        return {}
    error = found.get("error", found) if isinstance(found, dict) else {}
    return error if isinstance(error, dict) else {"message": error}


def _said(error: Mapping[str, Any]) -> str:
    return " ".join(str(error.get("message") or "").split())[:300]
