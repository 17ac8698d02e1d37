"""What every journal does, whatever it is made of."""

import asyncio

import hypothesis.strategies as st
import numpy as np
import pytest
from forwarded_journal import ForwardedJournal
from hypothesis import HealthCheck, given, settings

from polar.errors import JournalError, StaleAttempt
from polar.store import Scored, ScoreRecord, SqliteJournal, Unscored
from polar.types import (
    Call,
    CallId,
    Cancelled,
    Completed,
    Failed,
    Grade,
    Message,
    Sampling,
    Sent,
    Session,
    SessionId,
    TaskId,
    TimedOut,
    ToolCall,
    ToolSpec,
)

JOURNALS = [
    pytest.param(SqliteJournal.open, id="sqlite"),
    pytest.param(ForwardedJournal.open, id="forwarded"),
]
pytestmark = pytest.mark.parametrize("open_journal", JOURNALS)

texts = st.text(max_size=12)
names = st.sampled_from(["a", "b", "c"])
ids = st.lists(st.integers(0, 2**31 - 1), max_size=12)
tool_calls = st.builds(ToolCall, id=texts, name=texts, arguments=texts)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=texts,
    reasoning=st.none() | texts,
    tool_calls=st.lists(tool_calls, max_size=2).map(tuple),
    tool_call_id=st.none() | texts,
    name=st.none() | texts,
)
parameters = st.dictionaries(texts, st.none() | st.integers(-5, 5) | st.lists(texts, max_size=2))
tools = st.builds(ToolSpec, name=texts, description=texts, parameters=parameters)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    top_k=st.none() | st.integers(1, 99),
    max_tokens=st.none() | st.integers(1, 99),
    stop=st.lists(texts, max_size=2).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 99), max_size=2).map(tuple),
    seed=st.none() | st.integers(-(2**31), 2**31),
)


@st.composite
def intercepted(draw, parent, seen):
    """What a harness may have sent where the model saw something else."""
    earlier = () if parent is None or parent.sent is None else parent.sent.messages
    kept = earlier[: draw(st.integers(0, len(earlier)))]
    return Sent(
        model=draw(texts),
        messages=(*kept, *draw(st.lists(messages, max_size=2))),
        tools=draw(st.sampled_from([seen, ()]) | st.lists(tools, max_size=2).map(tuple)),
        interceptors=tuple(draw(st.lists(texts, min_size=1, max_size=2))),
        chosen_model=draw(st.none() | texts),
    )


@st.composite
def conversations(draw):
    """Calls that extend, rewrite or ignore each other in every way."""
    calls: list[Call] = []
    for index in range(draw(st.integers(1, 5))):
        parent = draw(st.sampled_from([None, *calls]))
        prompt, history = draw(ids), draw(st.lists(messages, max_size=2))
        if parent is not None and draw(st.booleans()):
            kept = draw(st.integers(0, len(parent.prompt_ids) + len(parent.sampled_ids)))
            prompt = [*parent.prompt_ids, *parent.sampled_ids][:kept] + prompt
            history = [*parent.messages, parent.reply, *history]
        sampled = draw(ids)
        logprobs = st.lists(st.floats(width=32), min_size=len(sampled), max_size=len(sampled))
        seen_tools = parent.tools if parent else tuple(draw(st.lists(tools, max_size=2)))
        calls.append(
            Call(
                id=CallId(f"c{index}"),
                session_id=SessionId("s"),
                attempt=0,
                index=index,
                parent_id=draw(st.sampled_from([None, CallId("elsewhere"), parent and parent.id])),
                prompt_ids=np.array(prompt, dtype=np.int32),
                sampled_ids=np.array(sampled, dtype=np.int32),
                logprobs=np.array(draw(logprobs), dtype=np.float32),
                weight_versions=np.arange(len(sampled), dtype=np.int32),
                messages=tuple(history),
                tools=seen_tools,
                sampling=draw(samplings),
                reply=draw(messages),
                finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls", "abandoned"])),
                kind=draw(st.sampled_from(["main", "subagent", "foreign"])),
                fork_reason=draw(st.none() | texts),
                measured_tokens=draw(st.sampled_from([0, len(sampled)])),
                discarded_tokens=draw(st.integers(0, 3)),
                opening_tokens=draw(st.integers(0, 3)),
                started_at=draw(st.floats(0, 2e9)),
                ended_at=draw(st.floats(0, 2e9)),
                sent=draw(intercepted(parent, seen_tools)) if draw(st.booleans()) else None,
            )
        )
    return calls


def session(attempt=0, session_id="s"):
    return Session(SessionId(session_id), TaskId("t"), "g", attempt, f"key-{attempt}")


def call(index=0, attempt=0, session_id="s"):
    return Call(
        id=CallId(f"{session_id}-{attempt}-{index}"),
        session_id=SessionId(session_id),
        attempt=attempt,
        index=index,
        parent_id=None,
        prompt_ids=np.arange(5, dtype=np.int32),
        sampled_ids=np.arange(3, dtype=np.int32),
        logprobs=np.zeros(3, dtype=np.float32),
        weight_versions=np.zeros(3, dtype=np.int32),
        messages=(Message("user", "hi"),),
        tools=(),
        sampling=Sampling(),
        reply=Message("assistant", "ho"),
        finish_reason="stop",
    )


def assert_same(found: Call, stored: Call):
    for name in Call.__slots__:
        ours, theirs = getattr(found, name), getattr(stored, name)
        if isinstance(theirs, np.ndarray):
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes(), name
        else:
            assert ours == theirs, name


@given(conversations(), st.sets(st.integers(0, 4)))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_calls_come_back_bit_for_bit_also_after_reopening(
    open_journal, tmp_path_factory, calls, reopen_before
):
    path = tmp_path_factory.mktemp("journal") / "journal.db"

    async def store_and_read():
        journal = open_journal(path)
        await journal.open_session(session(), phase="train", step=0)
        for stored in calls:
            if stored.index in reopen_before:
                await journal.aclose()
                journal = open_journal(path)
            await journal.add_call(stored)
        found = await journal.calls(SessionId("s"))
        await journal.aclose()
        return found

    found = asyncio.run(store_and_read())
    assert len(found) == len(calls)
    for ours, theirs in zip(found, calls, strict=True):
        assert_same(ours, theirs)


@pytest.mark.parametrize(
    "outcome",
    [
        Completed(Grade(0.5, passed=True, details={"checks": [1, "ü"]}), exit_code=137),
        Completed(Grade(0.0, passed=False), exit_code=1, cut_off="max_calls"),
        Failed("preparing", "no sandbox"),
        TimedOut("running", Grade(1.0, passed=False)),
        TimedOut("grading"),
        Cancelled("asked for"),
    ],
)
async def test_every_outcome_comes_back_as_it_was(open_journal, tmp_path, outcome):
    async with open_journal(tmp_path / "j.db") as journal:
        await journal.open_session(session(), phase="train", step=3)
        await journal.set_state(session(), "running")
        await journal.set_state(session(), "completed", outcome)
    async with open_journal(tmp_path / "j.db") as journal:
        (record,) = await journal.sessions()
    assert record.outcome == outcome
    assert (record.session, record.state) == (session(), "completed")
    assert (record.phase, record.step) == ("train", 3)


async def test_sessions_come_oldest_first_and_by_phase(open_journal, tmp_path):
    async with open_journal(tmp_path / "j.db") as journal:
        for name, phase in (("b", "train"), ("a", "train"), ("c", "rollout")):
            await journal.open_session(session(0, name), phase=phase, step=0)
        assert [r.session.id for r in await journal.sessions()] == ["b", "a", "c"]
        assert [r.session.id for r in await journal.sessions(phase="train")] == ["b", "a"]


async def test_calls_come_in_the_order_of_arrival(open_journal, tmp_path):
    async with open_journal(tmp_path / "j.db") as journal:
        await journal.open_session(session(), phase="train", step=0)
        for index in (2, 0, 1):
            await journal.add_call(call(index))
        assert [c.index for c in await journal.calls(SessionId("s"))] == [0, 1, 2]


async def test_a_stale_attempt_changes_nothing(open_journal, tmp_path):
    async with open_journal(tmp_path / "j.db") as journal:
        await journal.open_session(session(0), phase="train", step=0)
        await journal.add_call(call(0, attempt=0))
        await journal.open_session(session(1), phase="train", step=0)
        for stale in (
            journal.add_call(call(1, attempt=0)),
            journal.set_state(session(0), "completed", Cancelled("late")),
            journal.open_session(session(0), phase="train", step=0),
            journal.open_session(session(1), phase="train", step=0),
        ):
            with pytest.raises(StaleAttempt):
                await stale
        (record,) = await journal.sessions()
        assert (record.session.attempt, record.state, record.outcome) == (1, "queued", None)
        assert await journal.calls(SessionId("s")) == []
        assert len(await journal.calls(SessionId("s"), attempt=0)) == 1


async def test_an_unknown_session_is_an_error(open_journal, tmp_path):
    async with open_journal(tmp_path / "j.db") as journal:
        for unknown in (
            journal.calls(SessionId("nobody")),
            journal.add_call(call(session_id="nobody")),
            journal.set_state(session(0, "nobody"), "running"),
        ):
            with pytest.raises(JournalError, match="no such session"):
                await unknown


async def test_scores_come_back_by_call_and_the_first_one_stays(open_journal, tmp_path):
    async with open_journal(tmp_path / "j.db") as journal:
        await journal.open_session(session(), phase="train", step=0)
        for index in range(3):
            await journal.add_call(call(index))
        for index, result in ((0, Scored(0.5)), (1, Unscored("it hung")), (0, Scored(9.0))):
            await journal.add_score(score(index, result))
    async with open_journal(tmp_path / "j.db") as journal:
        assert await journal.scores(SessionId("s")) == {"s-0-0": 0.5}
        await journal.open_session(session(1), phase="train", step=0)
        assert await journal.scores(SessionId("s")) == {}
        assert await journal.scores(SessionId("s"), attempt=0) == {"s-0-0": 0.5}


async def test_a_score_of_a_call_that_is_not_on_record_is_refused(open_journal, tmp_path):
    async with open_journal(tmp_path / "j.db") as journal:
        await journal.open_session(session(), phase="train", step=0)
        with pytest.raises(JournalError):
            await journal.add_score(score(0, Scored(1.0)))
        with pytest.raises(JournalError, match="no such session"):
            await journal.scores(SessionId("nobody"))


def score(index, result):
    return ScoreRecord(SessionId("s"), 0, call(index).id, result)


async def test_a_call_is_stored_once(open_journal, tmp_path):
    async with open_journal(tmp_path / "j.db") as journal:
        await journal.open_session(session(), phase="train", step=0)
        await journal.add_call(call())
        with pytest.raises(JournalError):
            await journal.add_call(call())
        await journal.add_call(call(1))
        assert len(await journal.calls(SessionId("s"))) == 2


async def test_one_bad_entry_does_not_harm_those_committed_with_it(open_journal, tmp_path):
    async with open_journal(tmp_path / "j.db") as journal:
        await journal.open_session(session(), phase="train", step=0)
        entries = [journal.add_call(call(i, attempt=i % 2)) for i in range(40)]
        results = await asyncio.gather(*entries, return_exceptions=True)
        assert [type(result) for result in results] == [type(None), StaleAttempt] * 20
        assert [c.index for c in await journal.calls(SessionId("s"))] == list(range(0, 40, 2))


async def test_a_closed_journal_says_so(open_journal, tmp_path):
    journal = open_journal(tmp_path / "j.db")
    await journal.aclose()
    await journal.aclose()
    with pytest.raises(JournalError, match="closed"):
        await journal.sessions()
