"""Reads the conversation of a Messages request: roles and content blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from polar.dialects.anthropic_messages.tool_input import read_call
from polar.dialects.earlier import Earlier
from polar.dialects.fields import Fields, refuse
from polar.types import Message, ToolCall

__all__ = ["Said", "read_messages", "read_text"]

_ERROR = "Error: "


@dataclass(frozen=True, slots=True)
class Said:
    """What one message of the request says."""

    turns: tuple[Message, ...]
    loaded: frozenset[str]
    """Names of tools that its results refer to: deferred tools, now loaded."""


def read_messages(fields: Fields, earlier: Earlier[Said]) -> tuple[Said, ...]:
    """Read all messages, but for what an earlier request had; the system prompt stands apart."""
    # As bytes, for a tool's input may have true where it had 1, which are equal in Python.
    raw = list(map(orjson.dumps, fields.items("messages")))
    common, read = earlier.common(raw)
    new = (
        Said(tuple(_turns(message)), _loaded_tools(message))
        for message in fields.objects("messages", start=common)
    )
    said = (*read[:common], *new)
    earlier.keep(raw, said)
    return said


def read_text(fields: Fields, name: str) -> str:
    """Read text or an array of text blocks, joined without anything between."""
    return "".join(map(_text, _blocks(fields, name)))


def _loaded_tools(message: Fields) -> frozenset[str]:
    return frozenset(
        part.required_text("tool_name")
        for block in _blocks(message)
        if block.raw("type") == "tool_result"
        for part in _blocks(block)
        if part.raw("type") == "tool_reference"
    )


def _turns(fields: Fields) -> Iterator[Message]:
    fields.refuse_others({"role", "content"})
    match role := fields.required_text("role"):
        case "user":
            yield from _user(fields)
        case "assistant":
            yield _assistant(fields)
        case "system":
            yield Message("system", read_text(fields, "content"))
        case _:
            raise refuse(f"the role '{role}' is not supported", where=fields.path("role"))


def _user(fields: Fields) -> Iterator[Message]:
    """Read a user's message: results of tools first, as they answer the turn before, then text."""
    results: list[Message] = []
    text = ""
    for block in _blocks(fields):
        if block.raw("type") == "tool_result":
            results.append(_tool_result(block))
        else:
            text += _text(block)
    yield from results
    if text or not results:
        yield Message("user", text)


def _assistant(fields: Fields) -> Message:
    text, reasoning = "", ""
    calls: list[ToolCall] = []
    for block in _blocks(fields):
        match block.required_text("type"):
            case "thinking":
                reasoning += _thinking(block)
            case "tool_use":
                block.refuse_others({"type", "id", "name", "input", "cache_control"})
                calls.append(read_call(block))
            case "redacted_thinking":
                raise refuse(
                    "'redacted_thinking' cannot be read: it was not written here",
                    where=block.path("type"),
                )
            case _:
                text += _text(block)
    return Message("assistant", text, reasoning or None, tuple(calls))


def _thinking(block: Fields) -> str:
    """Read reasoning; whether it is the model's own is for the splice to find out."""
    block.refuse_others({"type", "thinking", "signature", "cache_control"})
    block.text("signature")
    return block.required_text("thinking")


def _tool_result(block: Fields) -> Message:
    block.refuse_others({"type", "tool_use_id", "content", "is_error", "cache_control"})
    content = "".join(map(_result_part, _blocks(block)))
    if block.flag("is_error") and not content.startswith(_ERROR):
        content = _ERROR + content
    return Message("tool", content, tool_call_id=block.required_text("tool_use_id"))


def _result_part(part: Fields) -> str:
    if part.raw("type") != "tool_reference":
        return _text(part)
    part.refuse_others({"type", "tool_name", "cache_control"})
    return f"Tool loaded: {part.required_text('tool_name')}\n"


def _text(block: Fields) -> str:
    kind = block.required_text("type")
    if kind in ("image", "document"):
        raise refuse(
            f"content of type '{kind}' is not supported: the model reads only text",
            where=block.path("type"),
        )
    if kind != "text":
        raise refuse(f"content of type '{kind}' is not supported here", where=block.path("type"))
    block.refuse_others({"type", "text", "cache_control", "citations"})
    if block.items("citations"):
        raise refuse("citations are not supported", where=block.path("citations"))
    return block.required_text("text")


def _blocks(fields: Fields, name: str = "content") -> list[Fields]:
    """Read content as blocks; a string is one block of text."""
    content = fields.raw(name)
    if isinstance(content, str):
        return [Fields({"type": "text", "text": content}, fields.path(name))]
    return fields.objects(name)
