"""Arguments of tool calls between text, as sampled, and the JSON object of a `tool_use` block.

A `tool_use` block can hold nothing but an object. Arguments that are no JSON object (cut short,
or never JSON) are given as a call of `invalid_tool_input`, a tool that no harness has, with the
name and the arguments as sampled in its input. So nothing runs on input that the model did not
write, the model is told of its mistake by the harness's own answer to an unknown tool, and when
the turn comes back it is read as the call that was sampled.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from polar.dialects.fields import Fields, refuse
from polar.types import ToolCall

__all__ = ["INVALID", "read_call", "write_input"]

INVALID = "invalid_tool_input"


def write_input(call: ToolCall) -> tuple[str, str]:
    """Write a call as the name of a tool and the JSON text of an object, verbatim if it is one."""
    if _is_object(call.arguments):
        return call.name, call.arguments
    sampled = {"name": call.name, "arguments": call.arguments}
    return INVALID, orjson.dumps(sampled).decode()


def read_call(block: Fields) -> ToolCall:
    """Read a `tool_use` block of the history."""
    call_id, name = block.required_text("id"), block.required_text("name")
    given = block.object("input")
    if given is None:
        raise refuse("a required object is missing", where=block.path("input"))
    if name == INVALID:
        return ToolCall(call_id, given.required_text("name"), given.required_text("arguments"))
    return ToolCall(call_id, name, json.dumps(block.raw("input"), ensure_ascii=False))


def _is_object(text: str) -> bool:
    try:
        value: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict)
