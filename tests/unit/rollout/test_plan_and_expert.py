"""Names of sessions, rewards of outcomes, and the scripted expert."""

import pytest

from polar.engines import SampleRequest
from polar.errors import EngineError
from polar.rollout import ExpertEngine, Plan
from polar.rollout.endings import reward_of
from polar.types import Cancelled, Completed, Failed, Grade, Message, Sampling, SessionId, TimedOut


def test_a_plan_names_the_same_sessions_every_time_and_none_twice():
    plan, again = (Plan(tasks=(), samples=3, phase="train", step=7) for _ in range(2))
    names = [plan.session_id(task, sample) for task in range(12) for sample in range(12)]
    assert names == [again.session_id(task, sample) for task in range(12) for sample in range(12)]
    assert len(set(names)) == 144
    assert names == sorted(names)
    assert all(plan.session_id(task, 0).startswith(plan.group_id(task) + "-") for task in range(12))


@pytest.mark.parametrize(
    ("outcome", "reward"),
    [
        (Completed(Grade(0.5, False), 0), 0.5),
        (TimedOut("running", Grade(1.0, True)), 1.0),
        (TimedOut("grading"), 0.0),
        (Failed("running", "broken"), 0.0),
        (Cancelled("stopped"), 0.0),
    ],
)
def test_only_what_was_graded_has_earned_anything(outcome, reward):
    assert reward_of(outcome) == reward


def encode(message: Message) -> list[int]:
    return [*message.content.encode(), 0]


async def said(engine: ExpertEngine, session: str, attempt: int = 0) -> bytes:
    request = SampleRequest([1, 2], Sampling(), affinity=session, attempt=attempt)
    (chunk,) = [chunk async for chunk in engine.sample(request)]
    assert chunk.finish_reason == "stop"
    assert set(chunk.logprobs) == {0.0}
    return bytes(chunk.token_ids[:-1])


async def test_the_expert_gives_each_session_its_own_turns_in_order():
    engine = ExpertEngine(encode)
    for name, turns in (("a", ("one", "two")), ("b", ("three",))):
        engine.prepare({SessionId(name): [Message("assistant", turn) for turn in turns]})
    assert [await said(engine, name) for name in "aba"] == [b"one", b"three", b"two"]


async def test_the_expert_says_when_it_is_asked_more_than_it_knows():
    engine = ExpertEngine(encode)
    with pytest.raises(EngineError, match="no further turn"):
        await said(engine, "a")


async def test_the_expert_goes_on_from_a_call_that_is_begun_and_from_no_other():
    engine = ExpertEngine(encode)
    engine.prepare({SessionId("a"): [Message("assistant", text) for text in ("<one>", "two")]})
    begun = SampleRequest([1, 2, *b"<o"], Sampling(), affinity="a", opening_tokens=2)
    (chunk,) = [chunk async for chunk in engine.sample(begun)]
    assert chunk.token_ids == (*b"ne>", 0)
    assert len(chunk.logprobs) == 4
    with pytest.raises(EngineError, match="does not begin with the call"):
        [chunk async for chunk in engine.sample(begun)]


async def test_the_expert_begins_again_in_a_sessions_next_attempt():
    engine = ExpertEngine(encode)
    engine.prepare({SessionId("a"): [Message("assistant", turn) for turn in ("one", "two")]})
    assert await said(engine, "a") == b"one"
    assert [await said(engine, "a", 1) for _ in range(2)] == [b"one", b"two"]
    with pytest.raises(EngineError, match="no further turn"):
        await said(engine, "a", 1)
    with pytest.raises(EngineError, match="no further turn"):
        await said(engine, "a", 0)
