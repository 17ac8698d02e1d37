"""Calls that user code scores: on record with their scores, and never held up by them."""

import asyncio
import threading

import openai
import pytest
from gateway_support import ByteEngine, ByteRenderer, Hold, ask, serving
from rollout_support import plan, task, world

from polar.errors import JournalError
from polar.gateway import Gateway, GatewaySettings, SessionPolicy
from polar.store import read_journal
from polar.trajectory import from_table, returns, to_table

LENGTH = "def score(call):\n    return len(call.reply.content)\n"
GATE = threading.Event()
"""Held by tests in which a scorer waits, which finds it through this module."""


def scoring(tmp_path, code: str, **fields) -> GatewaySettings:
    (tmp_path / "mine.py").write_text(code)
    return GatewaySettings(scorer={"python": f"{tmp_path}/mine.py:score", **fields})


async def converse(setup, session, *, turns=2):
    contents = ["hi"]
    async with setup.client(session) as client:
        for _ in range(turns):
            reply = await client.chat.completions.create(**ask(*contents))
            contents += [reply.choices[0].message.content, "more"]


async def test_every_call_has_its_score_once_its_session_is_closed(tmp_path):
    settings = scoring(tmp_path, LENGTH)
    async with serving(tmp_path, "four", "seventh", settings=settings) as setup:
        session = await setup.open()
        await converse(setup, session)
        usage = await setup.gateway.close(session.id)
        calls = await setup.journal.calls(session.id)
        scores = await setup.journal.scores(session.id)
    assert (usage.scored_calls, usage.unscored_calls) == (2, 0)
    assert [scores[call.id] for call in calls] == [4.0, 7.0]


async def test_a_command_scores_what_it_reads(tmp_path):
    program = tmp_path / "score.sh"
    program.write_text('#!/bin/sh\ngrep -c \'"content":"four"\'\n')
    program.chmod(0o755)
    settings = GatewaySettings(scorer={"command": [str(program)]})
    async with serving(tmp_path, "four", settings=settings) as setup:
        session = await setup.open()
        await converse(setup, session, turns=1)
        await setup.gateway.close(session.id)
        (score,) = (await setup.journal.scores(session.id)).values()
    assert score == 1.0


async def test_a_scorer_that_breaks_is_recorded_and_counted_and_kills_no_call(tmp_path, caplog):
    settings = scoring(tmp_path, "def score(call):\n    raise KeyError('lost')\n")
    async with serving(tmp_path, "one", "two", settings=settings) as setup:
        session = await setup.open()
        await converse(setup, session)
        usage = await setup.gateway.close(session.id)
        assert (usage.calls, usage.scored_calls, usage.unscored_calls) == (2, 0, 2)
        assert await setup.journal.scores(session.id) == {}
        assert setup.gateway.failure is None
    assert "KeyError" in caplog.text
    assert session.key not in caplog.text
    reasons = await asyncio.to_thread(unscored, tmp_path / "journal.db", session.id)
    assert list(reasons.values()) == ["the scorer failed: KeyError('lost')"] * 2


def unscored(path, session_id):
    with read_journal(path) as journal:
        return journal.unscored(session_id)


async def test_a_slow_scorer_keeps_no_client_waiting_and_a_closing_session_waits_for_it(tmp_path):
    code = (
        f"import sys\ndef score(call):\n    sys.modules[{__name__!r}].GATE.wait()\n    return 1\n"
    )
    GATE.clear()
    async with serving(tmp_path, "one", "two", settings=scoring(tmp_path, code)) as setup:
        session = await setup.open()
        await converse(setup, session)
        closing = asyncio.create_task(setup.gateway.close(session.id))
        await asyncio.wait([closing], timeout=0.05)
        assert not closing.done()
        GATE.set()
        assert (await closing).scored_calls == 2


async def test_a_scorer_that_hangs_keeps_a_session_open_no_longer_than_its_deadline(tmp_path):
    code = f"import sys\ndef score(call):\n    sys.modules[{__name__!r}].GATE.wait()\n"
    GATE.clear()
    settings = scoring(tmp_path, code, timeout_s=0.05)
    try:
        async with serving(tmp_path, "one", settings=settings) as setup:
            session = await setup.open()
            await converse(setup, session, turns=1)
            assert (await setup.gateway.close(session.id)).unscored_calls == 1
    finally:
        GATE.set()


async def test_what_was_broken_off_and_what_does_not_train_is_not_scored(tmp_path):
    hold = Hold()
    policy = SessionPolicy(
        kind_of=lambda chat, headers: "foreign" if chat.messages[0].content == "shell" else "main"
    )
    settings = scoring(tmp_path, LENGTH)
    async with serving(tmp_path, "curl", ["part", hold], settings=settings) as setup:
        session = await setup.open(policy)
        async with setup.client(session) as client:
            await client.chat.completions.create(**ask("shell"))
            waiting = asyncio.create_task(client.chat.completions.create(**ask("hi")))
            await hold.reached.wait()
            usage = await setup.gateway.close(session.id)
            with pytest.raises(openai.AuthenticationError):
                await waiting
    assert (usage.calls, usage.scored_calls, usage.unscored_calls) == (2, 0, 0)


async def test_a_score_that_cannot_be_recorded_fails_the_run(tmp_path):
    class Full:
        def __init__(self, journal):
            self._journal = journal

        async def add_call(self, call):
            await self._journal.add_call(call)

        async def add_score(self, score):
            raise JournalError("the disk is full")

    async with serving(tmp_path) as setup:
        session = await setup.open()
        gateway = Gateway(
            ByteEngine("x"), ByteRenderer(), Full(setup.journal), scoring(tmp_path, LENGTH)
        )
        async with gateway.serve() as address:
            await gateway.open(session, SessionPolicy())
            setup.url = address.url
            await converse(setup, session, turns=1)
            await gateway.close(session.id)
        assert "disk is full" in str(gateway.failure)


async def test_scores_become_step_rewards_of_the_trajectories(tmp_path):
    code = "def score(call):\n    return 0.25 if call.index == 0 else None\n"
    settings = scoring(tmp_path, code)
    both = task("ask one; ask two; write out 42")
    async with world(tmp_path, gateway=settings) as at:
        rollout = at.rollout()
        (group,) = await rollout.collect_all(plan(both))
        (done,) = group.trajectories
        (taken_over,) = (await rollout.collect_all(plan(both)))[0].trajectories
    (trace,) = done.traces
    first, second = trace.call_ids
    assert done.step_rewards == {first: 0.25}
    assert returns(done, discount=0.5) == {first: 0.25 + 0.5 * 1.0, second: 1.0}
    assert done.reward == 1.0
    assert taken_over.step_rewards == done.step_rewards
    (read,) = await asyncio.to_thread(written_and_read, done)
    assert read.step_rewards == done.step_rewards
    assert returns(read) == returns(done)


def written_and_read(trajectory):
    return from_table(to_table([trajectory], phase="train", step=0))


async def test_a_session_that_failed_has_no_rewards_by_step(tmp_path):
    async with world(tmp_path, gateway=scoring(tmp_path, LENGTH)) as at:
        rollout = at.rollout(max_attempts=1)
        (group,) = await rollout.collect_all(plan(task("exit 3")))
    assert dict(group.trajectories[0].step_rewards) == {}
    assert group.trajectories[0].reward == 0.0
