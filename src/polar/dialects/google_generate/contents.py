"""Reads Google's contents as messages: one a turn of the model, one a function's answer."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any

import orjson

from polar.dialects.earlier import Earlier
from polar.dialects.fields import Fields, refuse
from polar.dialects.google_generate.spelling import child, children
from polar.types import Message, ToolCall

__all__ = ["Said", "read_contents", "read_instruction"]

_DATA = ("functionCall", "functionResponse", "text")
_MARKS = ("thought", "thoughtSignature")
_MEDIA = ("fileData", "inlineData")


def read_instruction(request: Fields) -> tuple[Message, ...]:
    """Read the system instruction; nothing if there is no text in it."""
    content = child(request, "systemInstruction")
    if content is None:
        return ()
    content.refuse_others({"parts"}, without_effect={"role"})
    text = "".join(_user_text(part) for part in _parts(content))
    return (Message("system", text),) if text else ()


@dataclass(frozen=True, slots=True)
class Said:
    """A turn of the model with what follows it, up to the next one."""

    messages: tuple[Message, ...]
    content: int
    """Number of its first content in the request."""
    call_ids: tuple[str, ...]
    """Of its calls."""
    unasked: int
    """Answers to no call in all turns before."""


_NOTHING = Said((), 0, (), 0)


def read_contents(request: Fields, earlier: Earlier[Said]) -> tuple[Message, ...]:
    """Read the conversation, but for what an earlier request had.

    Contents of the model that follow each other are one turn: a client that keeps a stream as
    it came has a content for each chunk. The last turn is read again, for it may have grown.
    """
    found = request.raw("contents")
    # As bytes, for arguments may have true where they had 1, which are equal in Python.
    raw = list(map(orjson.dumps, [found] if isinstance(found, dict) else request.items("contents")))
    common, read = earlier.common(raw)
    count = bisect_left(read, common, key=attrgetter("content"))
    known, last = read[: max(count - 1, 0)], read[count - 1] if count else _NOTHING
    start = last.content
    calls = _Calls(chain.from_iterable(turn.call_ids for turn in known), last.unasked)
    said = (*known, *_read(children(request, "contents", start=start), calls, start))
    if not said:
        raise refuse("at least one content is required", where=request.path("contents"))
    earlier.keep(raw, said)
    return tuple(message for turn in said for message in turn.messages)


def _read(contents: Iterable[Fields], calls: _Calls, start: int) -> Iterator[Said]:
    """Read contents turn by turn."""
    messages: list[Message] = []
    called, unasked = calls.count, calls.unasked
    for number, content in enumerate(contents, start):
        content.refuse_others({"parts", "role"})
        role = content.text("role")
        if role == "model" and messages and messages[-1].role != "assistant":
            yield Said(tuple(messages), start, calls.since(called), unasked)
            messages, start, called, unasked = [], number, calls.count, calls.unasked
        match role:
            case "model":
                before = messages.pop() if messages else calls.begin_turn()
                messages.append(_with_parts(before, _parts(content), calls))
            case "user" | "function" | None:
                messages += _user_messages(_parts(content), calls)
            case _:
                raise refuse(f"the role '{role}' is not supported", where=content.path("role"))
    if messages:
        yield Said(tuple(messages), start, calls.since(called), unasked)


class _Calls:
    """The calls of a conversation, and which of the last turn still wait for an answer.

    Google's ids are optional, and some harnesses drop or replace them. A call without one is
    numbered, so that the same conversation always has the same ids; an answer without a known
    one is that to the first waiting call of its name.
    """

    def __init__(self, ids: Iterable[str], unasked: int) -> None:
        self._ids = list(ids)
        self._waiting: list[ToolCall] = []
        self.unasked = unasked

    @property
    def count(self) -> int:
        """How many calls there were."""
        return len(self._ids)

    def since(self, count: int) -> tuple[str, ...]:
        """Take the ids of the calls after the first ones."""
        return tuple(self._ids[count:])

    def begin_turn(self) -> Message:
        """Begin a turn of the model, in which nothing is said yet."""
        self._waiting.clear()
        return Message("assistant", "")

    def add(self, fields: Fields) -> ToolCall:
        """Read a call."""
        fields.refuse_others({"args", "id", "name"}, only={"willContinue": (False,)})
        name = fields.required_text("name")
        arguments = fields.object("args")
        call = ToolCall(
            id=fields.text("id") or f"google-{len(self._ids)}-{name}",
            name=name,
            arguments="{}" if arguments is None else _json(fields.raw("args")),
        )
        self._ids.append(call.id)
        self._waiting.append(call)
        return call

    def answered(self, name: str, call_id: str | None) -> str:
        """Find the id of the call that an answer is for."""
        if call_id in self._ids:
            fitting = [call for call in self._waiting if call.id == call_id]
        else:
            fitting = [call for call in self._waiting if call.name == name]
        if fitting:
            self._waiting.remove(fitting[0])
            return fitting[0].id
        if call_id:
            return call_id
        self.unasked += 1
        return f"google-unasked-{self.unasked}-{name}"


def _parts(content: Fields) -> list[Fields]:
    parts = children(content, "parts")
    for part in parts:
        for name in _MEDIA:
            if part.raw(name) is not None:
                raise refuse(
                    f"'{name}' is not supported: the model reads only text", where=part.path(name)
                )
        part.refuse_others((*_DATA, *_MARKS), without_effect={"partMetadata"})
        data = [name for name in part if name in _DATA]
        marked = any(part.raw(name) is not None for name in _MARKS)
        if len(data) != 1 and (data or not marked):
            raise refuse(f"expected one of {', '.join(_DATA)}", where=part.where)
        part.text("thoughtSignature")
    return parts


def _with_parts(turn: Message, parts: list[Fields], calls: _Calls) -> Message:
    """Add what the model said to its turn."""
    content, reasoning, called = [turn.content], [turn.reasoning or ""], [*turn.tool_calls]
    for part in parts:
        text, call = part.text("text") or "", child(part, "functionCall")
        (reasoning if part.flag("thought") else content).append(text)
        if call is not None:
            called.append(calls.add(call))
        _refuse_part(part, "functionResponse", "the model answers no calls")
    return replace(
        turn,
        content="".join(content),
        reasoning="".join(reasoning) or None,
        tool_calls=tuple(called),
    )


def _user_messages(parts: list[Fields], calls: _Calls) -> Iterator[Message]:
    """Make messages of what the user and the functions said, in their order."""
    texts: list[str] = []
    for part in parts:
        answer = child(part, "functionResponse")
        if answer is None:
            texts.append(_user_text(part))
            continue
        if texts:
            yield Message("user", "".join(texts))
        texts.clear()
        yield _answer(answer, calls)
    if texts or not parts:
        yield Message("user", "".join(texts))


def _user_text(part: Fields) -> str:
    for name in ("functionCall", "functionResponse"):
        _refuse_part(part, name, "it is not text")
    if part.flag("thought"):
        raise refuse("only the model has thoughts", where=part.path("thought"))
    return part.text("text") or ""


def _refuse_part(part: Fields, name: str, reason: str) -> None:
    if part.raw(name) is not None:
        raise refuse(f"'{name}' is not supported here: {reason}", where=part.path(name))


def _answer(fields: Fields, calls: _Calls) -> Message:
    fields.refuse_others(
        {"id", "name", "response"},
        without_effect={"scheduling"},
        only={"parts": ([],), "willContinue": (False,)},
    )
    name = fields.required_text("name")
    if fields.object("response") is None:
        raise refuse("a required object is missing", where=fields.path("response"))
    shown = _shown(name, fields.raw("response"))
    return Message("tool", shown, tool_call_id=calls.answered(name, fields.text("id")))


def _shown(name: str, response: dict[str, Any]) -> str:
    """Write an answer the way the model reads it: text as it is, anything else as JSON.

    Text is the only field `output` or `result`, `content` beside the function's own name (the
    form of the AI SDK), or `error`.
    """
    match response:
        case {"name": str(same), "content": str(text)} if same == name and len(response) == 2:
            return text
        case {"output": str(text)} | {"result": str(text)} if len(response) == 1:
            return text
        case {"error": str(text)} if len(response) == 1:
            return f"Error: {text}"
        case _:
            return _json(response)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
