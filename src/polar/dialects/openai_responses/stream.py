"""Writes responses as events while they are sampled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, assert_never

import orjson

from polar.dialects.openai_chat.reply import write_error
from polar.dialects.openai_responses.compaction import compaction_item
from polar.dialects.openai_responses.ids import ItemKind, item_id
from polar.dialects.openai_responses.reply import (
    call_item,
    ended,
    message_item,
    output_text,
    reasoning_item,
    reasoning_text,
    response_fields,
    status_of,
)
from polar.dialects.sse import named_event
from polar.errors import PolarError
from polar.types import (
    Chat,
    Delta,
    ReasoningDelta,
    Reply,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStart,
)

__all__ = ["EventEncoder"]


class EventEncoder:
    """Encodes one reply as named events, item after item.

    Items never overlap, for some clients know only one at a time: text is an item until
    reasoning follows, and the other way round. Tool calls come last, all of them in `end`.
    Clients execute a tool as soon as its item is done, and some execute what they have when a
    stream breaks off, so no part of a call is given away before the reply is on record.
    """

    def __init__(self, chat: Chat, *, response_id: str, created: int) -> None:
        self._id = response_id
        self._begun = response_fields(chat, response_id=response_id, created=created)
        self._compacts = chat.compacts is not None
        self._tools = {tool.name: tool for tool in chat.tools}
        self._numbers = itertools.count()
        self._output: list[dict[str, Any]] = []
        self._open: _Text | None = None

    def start(self) -> bytes:
        """Encode that the response has begun."""
        return self._event("response.created", response=self._begun) + self.keepalive()

    def keepalive(self) -> bytes:
        """Encode that the response goes on."""
        return self._event("response.in_progress", response=self._begun)

    def delta(self, delta: Delta) -> bytes:
        """Encode a piece of reasoning or text; calls wait for the end, and so do summaries."""
        if self._compacts:
            return b""
        match delta:
            case ReasoningDelta(text=text):
                return b"".join(self._say(_REASONING, text))
            case TextDelta(text=text):
                return b"".join(self._say(_MESSAGE, text))
            case ToolCallStart() | ToolArgumentsDelta():
                return b""
            case _:
                assert_never(delta)

    def end(self, reply: Reply) -> bytes:
        """Encode what is left of the items, and the whole response as the terminal event."""
        return b"".join(self._end(reply))

    def error(self, error: PolarError) -> bytes:
        """Encode that the response has failed."""
        failed = {
            **self._begun,
            "status": "failed",
            "error": _error_fields(error),
            "output": self._output,
        }
        return self._event("response.failed", response=failed)

    def _end(self, reply: Reply) -> Iterator[bytes]:
        status = status_of(reply.finish_reason)
        yield from self._summary(reply) if self._compacts else self._rest(reply, status)
        yield self._event(f"response.{status}", response=ended(self._begun, self._output, reply))

    def _summary(self, reply: Reply) -> Iterator[bytes]:
        item = compaction_item(reply, response_id=self._id)
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._done(item)

    def _rest(self, reply: Reply, status: str) -> Iterator[bytes]:
        """Write what no delta told, and the calls."""
        calls = reply.message.tool_calls
        if self._open is None and not (self._output or calls):
            yield from self._begin(_MESSAGE)
        yield from self._finish("completed" if calls else status)
        for number, call in enumerate(calls, start=1):
            yield from self._call(call, status if number == len(calls) else "completed")

    def _say(self, form: _Form, text: str) -> Iterator[bytes]:
        if self._open is None or self._open.form is not form:
            yield from self._finish("completed")
            yield from self._begin(form)
        if self._open is not None:
            self._open.pieces.append(text)
            yield self._about(self._open, f"{form.event}.delta", delta=text, **form.extra)

    def _begin(self, form: _Form) -> Iterator[bytes]:
        """Open an item of text."""
        index = len(self._output)
        self._open = opened = _Text(form, item_id(form.kind, self._id, index))
        item = form.item(opened.id, [], "in_progress")
        yield self._event("response.output_item.added", output_index=index, item=item)
        yield self._about(opened, "response.content_part.added", part=form.part(""))

    def _finish(self, status: str) -> Iterator[bytes]:
        """Close the item of text that is open, if any."""
        opened, self._open = self._open, None
        if opened is None:
            return
        form, text = opened.form, "".join(opened.pieces)
        yield self._about(opened, f"{form.event}.done", text=text, **form.extra)
        yield self._about(opened, "response.content_part.done", part=form.part(text))
        yield self._done(form.item(opened.id, [form.part(text)], status))

    def _call(self, call: ToolCall, status: str) -> Iterator[bytes]:
        """Write a whole tool call."""
        index = len(self._output)
        item = call_item(
            call, self._tools.get(call.name), response_id=self._id, index=index, status=status
        )
        name, event = (
            ("input", "response.custom_tool_call_input")
            if item["type"] == "custom_tool_call"
            else ("arguments", "response.function_call_arguments")
        )
        place = {"item_id": item["id"], "output_index": index}
        added = {**item, name: "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=added)
        if item[name]:
            yield self._event(f"{event}.delta", **place, delta=item[name])
        yield self._event(f"{event}.done", **place, **{name: item[name]})
        yield self._done(item)

    def _done(self, item: dict[str, Any]) -> bytes:
        index = len(self._output)
        self._output.append(item)
        return self._event("response.output_item.done", output_index=index, item=item)

    def _about(self, opened: _Text, kind: str, **fields: Any) -> bytes:
        """Write an event about the only content part of an item."""
        place = {"item_id": opened.id, "output_index": len(self._output), "content_index": 0}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = next(self._numbers)
        return named_event(kind, {"type": kind, "sequence_number": number, **fields})


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """How a kind of text is written."""

    kind: ItemKind
    event: str
    item: Callable[[str, list[dict[str, Any]], str], dict[str, Any]]
    part: Callable[[str], dict[str, Any]]
    extra: dict[str, Any]
    """What its events have besides the text."""


_REASONING = _Form("rs", "response.reasoning_text", reasoning_item, reasoning_text, {})
_MESSAGE = _Form("msg", "response.output_text", message_item, output_text, {"logprobs": []})


@dataclass(slots=True, eq=False)
class _Text:
    """An item of text that grows."""

    form: _Form
    id: str
    pieces: list[str] = field(default_factory=list)


def _error_fields(error: PolarError) -> dict[str, Any]:
    status, body = write_error(error)
    fields = orjson.loads(body)["error"]
    code = fields["code"] if status < 500 else None
    return {"code": code or "server_error", "message": fields["message"]}
