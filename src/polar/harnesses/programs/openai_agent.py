"""An agent on the OpenAI Agents SDK with one tool, a shell: `openai_agent.py SETTINGS.json`.

The SDK itself reads OPENAI_BASE_URL and OPENAI_API_KEY. Runs in the SDK's own environment.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from agents import Agent, MaxTurnsExceeded, ModelSettings, Runner, function_tool
from agents.mcp import MCPServerStdio
from agents.models.openai_provider import OpenAIProvider
from agents.run import RunConfig

SETTINGS = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
LONGEST_OUTPUT = 8000


def may_run(command: str) -> bool:
    """Ask whoever is at the terminal, where the settings want it so."""
    if not SETTINGS["asks"]:
        return True
    return sys.stdin.isatty() and input(f"run `{command}`? [y/N] ").strip().lower() == "y"


def shell(command: str) -> str:
    """Run a command and say what it printed."""
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SETTINGS["command_timeout_s"],
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"The command took longer than {SETTINGS['command_timeout_s']} s and was ended."
    output = done.stdout.decode(errors="replace")
    if len(output) > LONGEST_OUTPUT:
        output = f"{output[:LONGEST_OUTPUT]}\n[cut: {len(output)} characters]"
    return f"exit code {done.returncode}\n{output}"


@function_tool
async def run_command(command: str) -> str:
    """Run a command of the shell /bin/sh in the working folder.

    Args:
        command: The command line.
    """
    if not await asyncio.to_thread(may_run, command):
        return "The user did not allow it."
    return await asyncio.to_thread(shell, command)


def instructions() -> Iterator[str]:
    """Give the task, then whatever somebody at the terminal says."""
    if first := os.environ.get("POLAR_INSTRUCTION"):
        yield first
    while SETTINGS["interactive"]:
        try:
            yield input("> ")
        except EOFError:
            return


async def main() -> None:
    """Do the tasks, all in one conversation."""
    provider = OpenAIProvider(use_responses=SETTINGS["api"] == "responses")
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(
                MCPServerStdio(params, name=name, cache_tools_list=True)
            )
            for name, params in SETTINGS["mcp_servers"].items()
        ]
        agent = Agent(
            name="agent",
            instructions=SETTINGS["system_prompt"],
            model=SETTINGS["model"],
            model_settings=ModelSettings(max_tokens=SETTINGS["max_tokens"]),
            tools=[run_command],
            mcp_servers=servers,
        )
        history = []
        for instruction in instructions():
            history.append({"role": "user", "content": instruction})
            try:
                result = await Runner.run(
                    agent,
                    history,
                    max_turns=SETTINGS["max_turns"],
                    run_config=RunConfig(model_provider=provider, tracing_disabled=True),
                )
            except MaxTurnsExceeded:
                print("The agent made as many model calls as it may.")
                return
            print(result.final_output)
            history = result.to_input_list()


asyncio.run(main())
