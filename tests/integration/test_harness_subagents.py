"""Real harnesses start sub-agents: whose calls are whose, and every token on record once."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from scripted_sessions import ROOMY, TASK, Account, Turn, is_chain, made, played, run, say, use

from polar.types import Message, ToolCall

pytestmark = pytest.mark.timeout(600)

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


@pytest.mark.parametrize("name", WAYS)
async def test_two_sub_agents_at_once_are_told_apart_and_each_is_a_chain_of_its_own(name, tmp_path):
    way = WAYS[name]
    harness = made(name, context_window=ROOMY, **way.settings)

    def script(turn: Turn) -> Message:
        if TASK not in turn.prompt:
            (errand,) = (errand for errand in ERRANDS if told(errand) in turn.prompt)
            work = [run(harness, f"echo {errand} > {errand}"), way.ends]
            return work[min(turn.replies, len(work) - 1)]
        start = together([way.start(errand) for errand in ERRANDS])
        hello = run(harness, "echo hello > hello.txt")
        work = [start, *(then(turn) for then in way.then[: turn.replies]), hello, say("Done.")]
        return work[min(turn.replies, len(work) - 1)]

    session = await played(harness, tmp_path, script)

    assert session.result.exit_code == 0, session.result
    assert session.wrote, session.result
    account = Account(session.calls)
    assert set(account.kinds()) == {"main", "subagent"}
    assert all(TASK in str(call.messages) for call in account.by_kind["main"])
    assert is_chain(account.by_kind["main"])
    for errand in ERRANDS:
        assert (tmp_path / "work" / errand).read_text() == f"{errand}\n"
        own = [call for call in account.by_kind["subagent"] if told(errand) in str(call.messages)]
        assert len(own) == 2
        assert is_chain(own)
    assert session.forks == ("new_conversation",) * len(ERRANDS)
    assert account.dropped == {}
    assert len(account.traces) == 1 + len(ERRANDS)
    assert session.fidelity.kept == session.fidelity.sampled > 0


@pytest.mark.parametrize("name", ["claude_code", "codex"])
async def test_a_harness_starts_no_sub_agents_unless_it_is_asked_for(name, tmp_path):
    harness = made(name, context_window=ROOMY)
    offered = []

    def script(turn: Turn) -> Message:
        offered.append(any(turn.offers(tool) for tool in ("Agent", "multi_agent_v1__spawn_agent")))
        return [run(harness, "echo hello > hello.txt"), say("Done.")][min(turn.replies, 1)]

    session = await played(harness, tmp_path, script)

    assert session.wrote, session.result
    assert offered == [False, False]
