"""Real harnesses have a full history summarised: what is trained, what is dropped, why it forks."""

from itertools import groupby

import pytest
from compaction_sessions import KNOWN, WAYS, play_full
from harness_support import CACHE
from scripted_sessions import ROOMY, Account, Turn, is_chain, made, played, run, say

from polar.dialects.openai_responses.compaction import ASK
from polar.harnesses.codex import Codex
from polar.harnesses.settings import CodexSettings
from polar.types import Message

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_what_a_compaction_samples_is_dropped_and_the_work_goes_on(way, tmp_path):
    session = await play_full(way, tmp_path)

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


class _OpenAIsCodex(Codex):
    """Codex as it is where its provider is called OpenAI: the provider is to compact."""

    def _config(self, request) -> str:
        return super()._config(request).replace('name = "polar"', 'name = "OpenAI"')


async def test_codex_has_the_gateway_summarise_where_it_takes_it_for_openai(tmp_path):
    harness = _OpenAIsCodex(CodexSettings(cache=CACHE, context_window=40_000))
    after: list[Message] = []

    def script(turn: Turn) -> Message:
        if ASK.content in turn.prompt:
            return say(KNOWN)
        if KNOWN in turn.prompt:
            after.append(say("Done.") if after else run(harness, "echo hello > hello.txt"))
            return after[-1]
        return run(harness, f"base64 -w0 /dev/urandom | head -c 25000 # {turn.replies}")

    session = await played(harness, tmp_path, script)

    assert session.result.exit_code == 0, session.result
    assert session.wrote, session.result
    account = Account(session.calls)
    assert [kind for kind, _ in groupby(account.kinds())] == ["main", "compaction", "main"]
    # It is asked for at the end of the history as it is, which therefore does not fork there.
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
