"""The Hermes form of tools: `<tool_call>` blocks of JSON, written and read as text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from polar.rendering.function_form import plain_json
from polar.types import ToolCall, ToolSpec

__all__ = [
    "CALL_CLOSE",
    "CALL_OPEN",
    "WHITESPACE",
    "call_opening",
    "call_text",
    "parse_call",
    "tools_section",
]

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"

WHITESPACE = " \t\r\n"
_HEAD = "You can call these functions:"
_FORM = (
    "To call a function, write one such block for each call:\n"
    f'{CALL_OPEN}\n{{"name": <function>, "arguments": <JSON object>}}\n{CALL_CLOSE}'
)


def tools_section(tools: Sequence[ToolSpec]) -> str:
    """Describe tools to a model whose chat template does not: one line of JSON each."""
    lines = [
        json.dumps(
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": plain_json(tool.parameters),
            },
            ensure_ascii=False,
        )
        for tool in tools
    ]
    return "\n".join([_HEAD, *lines, "", _FORM])


def call_text(call: ToolCall) -> str:
    """Write a call as the model is told to write it; the arguments keep their bytes."""
    name = json.dumps(call.name, ensure_ascii=False)
    return f'{CALL_OPEN}\n{{"name": {name}, "arguments": {call.arguments}}}\n{CALL_CLOSE}'


def call_opening(name: str | None) -> str:
    """Write how a call begins, for the model to go on: with its arguments, or with a tool's name.

    It ends where models end a token: the space before the arguments belongs to the next one.
    """
    if name is None:
        return f'{CALL_OPEN}\n{{"name": "'
    return f'{CALL_OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'


def parse_call(body: str) -> tuple[str, str] | None:
    """Read what stands between the tags.

    Returns:
        The name and the arguments, byte for byte as written; None unless the body is one JSON
        object with a printable `name` and an object as `arguments`.
    """
    text = body.strip(WHITESPACE)
    decoder = json.JSONDecoder(parse_constant=_refuse)
    try:
        value, end = decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if end != len(text) or not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str) or not name or not name.isprintable():
        return None
    if not isinstance(arguments, dict):
        return None
    return name, _member(text, "arguments", decoder)


def _member(text: str, wanted: str, decoder: json.JSONDecoder) -> str:
    """Cut the text of a member out of a valid JSON object; of equal keys the last, as JSON has."""
    found = ""
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = decoder.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        start = at
        _, at = decoder.raw_decode(text, at)
        if key == wanted:
            found = text[start:at]
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    while text[at] in WHITESPACE:
        at += 1
    return at


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
