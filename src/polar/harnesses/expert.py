"""Replies by which an expert runs shell commands through a harness's own tool."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polar.types import Message, ToolCall

__all__ = ["tool_turns"]


def tool_turns(
    tool: str, commands: Sequence[str], arguments: Callable[[str], Mapping[str, Any]]
) -> tuple[Message, ...]:
    """Call a tool once a turn for each command, and say at last that it is done.

    Args:
        tool: Name of the harness's shell tool.
        commands: Shell commands, in order.
        arguments: From a command to the tool's arguments.
    """
    calls = (
        ToolCall(f"expert{index}", tool, json.dumps(arguments(command)))
        for index, command in enumerate(commands)
    )
    turns = (Message("assistant", "", tool_calls=(call,)) for call in calls)
    return (*turns, Message("assistant", "Done."))
