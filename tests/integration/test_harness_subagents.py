"""Real harnesses start sub-agents: whose calls are whose, and every token on record once."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from scripted_sessions import ROOMY, TASK, Account, Turn, made, played, run, say, use

from polar.types import Message

pytestmark = pytest.mark.timeout(600)

ERRAND = "ERRAND: write the word errand into errand.txt"


@dataclass(frozen=True)
class Way:
    """How the model of a harness starts a sub-agent, and how a sub-agent ends."""

    start: Message
    then: tuple[Callable[[Turn], Message], ...] = ()
    """What the main agent does next, before its own work."""
    ends: Message = field(default_factory=lambda: say("The errand is done."))
    settings: dict[str, Any] = field(default_factory=dict)


def wait_for_agent(turn: Turn) -> Message:
    [agent] = set(re.findall(r'"agent_id":"([^"]+)"', turn.prompt))
    return use("multi_agent_v1__wait_agent", targets=[agent])


def started(tool: str, kind: str) -> Message:
    return use(tool, description="Run the errand", prompt=ERRAND, subagent_type=kind)


WAYS = {
    "claude_code": Way(started("Agent", "general-purpose"), settings={"subagents": True}),
    "codex": Way(
        use("multi_agent_v1__spawn_agent", message=ERRAND),
        then=(wait_for_agent,),
        settings={"subagents": True},
    ),
    "gemini_cli": Way(
        use("invoke_agent", agent_name="generalist", prompt=ERRAND),
        ends=use("complete_task", result={"response": "The errand is done."}),
    ),
    "opencode": Way(started("task", "general")),
    "qwen_code": Way(started("agent", "general-purpose")),
}


@pytest.mark.parametrize("name", WAYS)
async def test_a_sub_agents_calls_are_told_apart_and_are_a_chain_of_their_own(name, tmp_path):
    way = WAYS[name]
    harness = made(name, context_window=ROOMY, **way.settings)

    def script(turn: Turn) -> Message:
        if TASK not in turn.prompt:
            work = [run(harness, "echo errand > errand.txt"), way.ends]
            return work[min(turn.replies, len(work) - 1)]
        hello = run(harness, "echo hello > hello.txt")
        work = [way.start, *(then(turn) for then in way.then[: turn.replies]), hello, say("Done.")]
        return work[min(turn.replies, len(work) - 1)]

    session = await played(harness, tmp_path, script)

    assert session.result.exit_code == 0, session.result
    assert session.wrote, session.result
    assert (tmp_path / "work" / "errand.txt").read_text() == "errand\n"
    account = Account(session.calls)
    assert set(account.kinds()) == {"main", "subagent"}
    assert all(TASK in str(call.messages) for call in account.by_kind["main"])
    assert all(TASK not in str(call.messages) for call in account.by_kind["subagent"])
    assert len(account.by_kind["subagent"]) == 2
    assert account.is_chain("main")
    assert account.is_chain("subagent")
    assert list(account.forks().values()) == ["new_conversation"]
    assert account.dropped == {}
    assert len(account.traces) == 2
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
