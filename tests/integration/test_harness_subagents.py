"""Real harnesses start sub-agents: whose calls are whose, and every token on record once."""

import pytest
from scripted_sessions import ROOMY, TASK, Account, Turn, is_chain, made, played, run, say
from subagent_sessions import ERRANDS, WAYS, play_errands, told

from polar.types import Message

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", WAYS)
async def test_two_sub_agents_at_once_are_told_apart_and_each_is_a_chain_of_its_own(name, tmp_path):
    session = await play_errands(name, tmp_path)

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


@pytest.mark.parametrize("name", WAYS)
async def test_two_sub_agents_with_the_same_errand_share_no_reply(name, tmp_path):
    session = await play_errands(name, tmp_path, errands=("first", "first"))

    assert session.wrote, session.result
    account = Account(session.calls)
    assert len(account.by_kind["subagent"]) == 4
    openings = [call for call in account.by_kind["subagent"] if call.parent_id is None]
    assert len(openings) == 2
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


async def test_a_sub_agent_that_its_harness_kills_at_the_end_is_dropped_as_abandoned(tmp_path):
    """Codex ends with its main agent, whatever its sub-agents are at."""
    way = WAYS["codex"]
    harness = made("codex", context_window=ROOMY, **way.settings)
    work = [way.start(ERRANDS[0]), run(harness, "sleep 1; echo hello > hello.txt"), say("Done.")]

    session = await played(
        harness,
        tmp_path,
        lambda turn: work[min(turn.replies, 2)] if TASK in turn.prompt else say("I begin at once."),
        stalls=lambda turn: TASK not in turn.prompt,
    )

    assert session.result.exit_code == 0, session.result
    assert session.wrote, session.result
    account = Account(session.calls)
    (killed,) = account.by_kind["subagent"]
    assert killed.finish_reason == "abandoned"
    assert account.dropped == {"abandoned": len(killed.sampled_ids)}
    assert len(killed.sampled_ids) > 0
    assert is_chain(account.by_kind["main"])
    assert session.fidelity.kept == account.sampled("main")
