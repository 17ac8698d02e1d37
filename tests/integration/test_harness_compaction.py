"""Real harnesses have a full history summarised: what is trained, what is dropped, why it forks."""

from dataclasses import dataclass
from itertools import groupby

import pytest
from scripted_sessions import ROOMY, Account, Turn, is_chain, made, played, run, say

from polar.types import Message

pytestmark = pytest.mark.timeout(600)

KNOWN = "The folder was looked at, and hello.txt is still to be written."
TWICE = ("compaction", "compaction")
"""Forks of a session in which the request for a summary and the use of it are histories anew."""


@dataclass(frozen=True)
class Way:
    """How the history of a harness becomes full, and how its summary is asked for."""

    harness: str
    asks: str
    window: int
    """Tokens that the harness believes the model to hold."""
    chars: int
    """What each command prints: random, so that hardly two characters are a token."""
    tag: str = "summary"
    """What the summary is wrapped in."""
    same: int = 0
    """How many of the first commands are the same: Gemini CLI summarises what was said before
    something that a user says, as which it says that the agent is in a loop."""
    forks: tuple[str, ...] = TWICE


WAYS = {
    "claude_code": Way("claude_code", "CRITICAL: Respond with TEXT ONLY", 60_000, 25_000),
    "codex": Way("codex", "CONTEXT CHECKPOINT COMPACTION", 40_000, 25_000),
    "gemini_cli": Way(
        *("gemini_cli", "distilling chat history", 150_000, 25_000),
        tag="state_snapshot",
        same=5,
        forks=("edited_message", "compaction", "compaction", "compaction"),
    ),
    "opencode": Way("opencode", "context summarization agent", 40_000, 15_000),
    "qwen_code": Way(
        *("qwen_code", "the component that summarizes", 120_000, 15_000),
        tag="state_snapshot",
        forks=("compaction", "new_conversation"),
    ),
    "qwen_code, which asks again in another way": Way(
        *("qwen_code", "the component that summarizes", 120_000, 15_000),
        forks=(*TWICE, "new_conversation"),
    ),
}
"""Qwen Code's first request for a summary extends the history that it is about, and in the second
turn after one Qwen Code puts its list of skills before the summary, which forks once more."""


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_what_a_compaction_samples_is_dropped_and_the_work_goes_on(way, tmp_path):
    harness = made(way.harness, context_window=way.window)
    after: list[Message] = []

    def script(turn: Turn) -> Message:
        if way.asks in turn.prompt:
            return say(f"<{way.tag}>\n{KNOWN}\n</{way.tag}>")
        if KNOWN in turn.prompt:
            after.append(say("Done.") if after else run(harness, "echo hello > hello.txt"))
            return after[-1]
        varied = "" if turn.replies < way.same else f" # {turn.replies}"
        return run(harness, f"base64 -w0 /dev/urandom | head -c {way.chars}{varied}")

    session = await played(harness, tmp_path, script)

    assert session.result.exit_code == 0, session.result
    assert session.wrote, session.result
    account = Account(session.calls)
    assert [kind for kind, _ in groupby(account.kinds())] == ["main", "compaction", "main"]
    assert session.forks == way.forks
    assert account.dropped == {"kind_compaction": account.sampled("compaction")}
    assert session.fidelity.kept == account.sampled("main")
    goes_on, end = session.calls[-2:]
    assert (goes_on.parent_id, goes_on.fork_reason) == (None, "compaction")
    assert KNOWN in str(goes_on.messages)
    if way.harness != "qwen_code":
        assert (end.parent_id, end.fork_reason) == (goes_on.id, None)


async def test_pi_has_a_history_that_is_too_long_summarised_when_its_work_is_over(tmp_path):
    harness = made("pi", context_window=8_000)
    fill = run(harness, "base64 -w0 /dev/urandom | head -c 3000")
    work = [*[fill] * 12, run(harness, "echo hello > hello.txt"), say("Done.")]

    def script(turn: Turn) -> Message:
        asked = "context summarization assistant" in turn.prompt
        return say(KNOWN) if asked else work[turn.replies]

    session = await played(harness, tmp_path, script)

    assert session.result.exit_code == 0, session.result
    assert session.wrote, session.result
    account = Account(session.calls)
    assert account.kinds() == ["main"] * len(work) + ["compaction"]
    assert is_chain(account.by_kind["main"])
    assert session.forks == ("compaction",)
    assert account.dropped == {"kind_compaction": account.sampled("compaction")}
    assert session.fidelity.kept == account.sampled("main")


async def test_a_task_that_quotes_a_compaction_is_worked_on_and_trained(tmp_path):
    harness = made("codex", context_window=ROOMY)
    quote = run(harness, "echo You are performing a CONTEXT CHECKPOINT COMPACTION.")
    work = [quote, run(harness, "echo hello > hello.txt"), say("Done.")]

    session = await played(harness, tmp_path, lambda turn: work[turn.replies])

    assert Account(session.calls).kinds() == ["main"] * len(work)
    assert session.fidelity.kept == session.fidelity.sampled > 0
