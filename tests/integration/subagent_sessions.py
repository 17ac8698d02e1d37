"""Sessions of real harnesses in which the model sends two sub-agents on errands at once."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scripted_sessions import ROOMY, TASK, Turn, made, played, run, say, use

from polar.cli.harness_check import PlayedSession
from polar.types import Message, ToolCall

ERRANDS = ("first", "second")
"""What two sub-agents are to write into files that are named so."""


def told(errand: str) -> str:
    return f"ERRAND: write the word {errand} into a file of that name."


@dataclass(frozen=True)
class Way:
    """How the model of a harness starts a sub-agent, and how a sub-agent ends."""

    start: Callable[[str], Message]
    """From an errand to the reply that sends a sub-agent on it."""
    then: tuple[Callable[[Turn], Message], ...] = ()
    """What the main agent does next, before its own work."""
    ends: Message = field(default_factory=lambda: say("The errand is done."))
    settings: dict[str, Any] = field(default_factory=dict)


def wait_for_agents(turn: Turn) -> Message:
    agents = sorted(set(re.findall(r'"agent_id":"([^"]+)"', turn.prompt)))
    return use("multi_agent_v1__wait_agent", targets=agents)


def task(tool: str, kind: str) -> Callable[[str], Message]:
    return lambda errand: use(
        tool, description=f"Run the {errand} errand", prompt=told(errand), subagent_type=kind
    )


WAYS = {
    "claude_agent_sdk": Way(task("Agent", "general-purpose"), settings={"subagents": True}),
    "claude_code": Way(task("Agent", "general-purpose"), settings={"subagents": True}),
    "codex": Way(
        lambda errand: use("multi_agent_v1__spawn_agent", message=told(errand)),
        then=(wait_for_agents,),
        settings={"subagents": True},
    ),
    "gemini_cli": Way(
        lambda errand: use("invoke_agent", agent_name="generalist", prompt=told(errand)),
        ends=use("complete_task", result={"response": "The errand is done."}),
    ),
    "opencode": Way(task("task", "general")),
    "qwen_code": Way(task("agent", "general-purpose")),
}


def together(replies: Sequence[Message]) -> Message:
    """Call the tools of several replies in one."""
    calls = (call for reply in replies for call in reply.tool_calls)
    numbered = (ToolCall(f"scripted{n}", call.name, call.arguments) for n, call in enumerate(calls))
    return replace(replies[0], tool_calls=tuple(numbered))


async def play_errands(
    name: str, folder: Path, errands: tuple[str, str] = ERRANDS
) -> PlayedSession:
    """Play a session in which two sub-agents and the main agent each write a file."""
    way = WAYS[name]
    harness = made(name, context_window=ROOMY, **way.settings)

    def script(turn: Turn) -> Message:
        if TASK not in turn.prompt:
            (errand,) = (errand for errand in ERRANDS if told(errand) in turn.prompt)
            work = [run(harness, f"echo {errand} > {errand}"), way.ends]
            return work[min(turn.replies, len(work) - 1)]
        start = together([way.start(errand) for errand in errands])
        hello = run(harness, "echo hello > hello.txt")
        work = [start, *(then(turn) for then in way.then[: turn.replies]), hello, say("Done.")]
        return work[min(turn.replies, len(work) - 1)]

    return await played(harness, folder, script)
