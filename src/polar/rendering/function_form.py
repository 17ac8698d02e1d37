"""Tools and calls as chat templates take them: the JSON form of OpenAI's function calling."""

from __future__ import annotations

import json
from typing import Any

from polar.types import ToolCall, ToolSpec

__all__ = ["call_fields", "plain_json", "tool_fields"]


def tool_fields(tool: ToolSpec) -> dict[str, Any]:
    """Write a tool."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": plain_json(tool.parameters),
        },
    }


def call_fields(call: ToolCall) -> dict[str, Any]:
    """Write a call; arguments that are JSON are decoded, for most templates iterate over them."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = call.arguments
    function = {"name": call.name, "arguments": arguments}
    return {"type": "function", "id": call.id, "function": function}


def plain_json(value: object) -> Any:
    """Copy read-only mappings into the plain dicts that `json` writes."""
    return json.loads(json.dumps(value, default=_as_dict))


def _as_dict(value: Any) -> dict[str, Any]:
    return dict(value)
