"""An agent on the Claude Agent SDK, with tools of Claude Code: `claude_agent.py SETTINGS.json`.

The SDK starts the Claude Code that it brings, which reads ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY.
Runs in the SDK's own environment.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage

SETTINGS = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


def instructions() -> Iterator[str]:
    """Give the task, then whatever somebody at the terminal says."""
    if first := os.environ.get("POLAR_INSTRUCTION"):
        yield first
    while SETTINGS["interactive"]:
        try:
            yield input("> ")
        except EOFError:
            return


async def main() -> int:
    """Do the tasks, all in one conversation; return 1 where the agent ended by an error."""
    options = ClaudeAgentOptions(
        model=SETTINGS["model"],
        system_prompt=SETTINGS["system_prompt"],
        tools=SETTINGS["tools"],
        skills="all" if SETTINGS["skills"] else None,
        setting_sources=["user", "project", "local"],
        mcp_servers=SETTINGS["mcp_servers"],
        strict_mcp_config=bool(SETTINGS["mcp_servers"]),
        max_turns=SETTINGS["max_turns"],
        permission_mode="acceptEdits" if SETTINGS["asks"] else "bypassPermissions",
    )
    async with ClaudeSDKClient(options) as client:
        for instruction in instructions():
            await client.query(instruction)
            async for message in client.receive_response():
                if isinstance(message, ResultMessage):
                    print(message.result or message.subtype)
                    if message.is_error and message.subtype != "error_max_turns":
                        return 1
    return 0


sys.exit(asyncio.run(main()))
