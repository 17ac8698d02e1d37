"""Real harnesses ask the model things beside the work: titles and memories are never trained."""

import pytest
from scripted_sessions import ROOMY, TASK, Account, Turn, is_chain, made, played, run, say

from polar.types import Message

pytestmark = pytest.mark.timeout(600)


async def test_a_title_of_opencode_is_dropped_and_the_work_is_one_chain(tmp_path):
    harness = made("opencode", context_window=ROOMY, title=True)

    def script(turn: Turn) -> Message:
        if "You are a title generator" in turn.prompt:
            return say("Writing a greeting")
        return [run(harness, "echo hello > hello.txt"), say("Done.")][turn.replies]

    session = await played(harness, tmp_path, script)

    assert session.result.exit_code == 0, session.result
    assert session.wrote, session.result
    account = Account(session.calls)
    assert sorted(account.kinds()) == ["auxiliary", "main", "main"]
    assert is_chain(account.by_kind["main"])
    assert account.dropped == {"kind_auxiliary": account.sampled("auxiliary")}
    assert session.fidelity.kept == account.sampled("main") > 0


async def test_what_qwen_code_remembers_is_dropped_though_it_has_tools(tmp_path):
    """It remembers after a task that was answered without a tool."""
    harness = made("qwen_code", context_window=ROOMY, memory=True)
    remember = run(harness, "echo The user likes greetings. > memory.txt")

    def script(turn: Turn) -> Message:
        if "managed memory extraction subagent" in turn.prompt:
            return remember if "memory.txt" not in turn.prompt else say("Nothing more.")
        return say("It is a file with one word.")

    session = await played(harness, tmp_path, script)

    assert session.result.exit_code == 0, session.result
    account = Account(session.calls)
    work, *aside = session.calls
    assert (work.kind, work.fork_reason) == ("main", None)
    assert TASK in str(work.messages)
    assert [call.kind for call in aside] == ["auxiliary"] * 2
    assert is_chain(aside)
    assert session.forks == ("new_conversation",)
    assert account.dropped == {"kind_auxiliary": account.sampled("auxiliary")}
    assert session.fidelity.kept == account.sampled("main") > 0
