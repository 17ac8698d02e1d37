"""Sessions to imitate are those that were asked for, and the others are counted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from train_cases import make_trace, make_trajectory

from polar.train.selecting import select
from polar.train.sft_settings import SftSettings
from polar.types import Failed, Grade, TaskId, TimedOut


def session(reward=1.0, task="t", tokens=1, outcome=None):
    trace = make_trace(range(tokens + 1), range(1, tokens + 1))
    return replace(make_trajectory(trace, reward=reward, outcome=outcome), task_id=TaskId(task))


sessions = st.lists(
    st.builds(
        session,
        reward=st.sampled_from([0.0, 0.5, 1.0]),
        task=st.sampled_from("abc"),
        tokens=st.integers(0, 3),
        outcome=st.sampled_from([None, None, Failed("running", "x"), TimedOut("preparing")]),
    ),
    max_size=12,
)
settings_ = st.builds(
    SftSettings,
    min_reward=st.sampled_from([None, 0.5, 1.0]),
    best_of=st.sampled_from([None, 1, 2]),
)


@given(sessions, settings_)
def test_every_session_is_kept_or_counted(recorded, settings):
    found = select(recorded, settings)
    assert len(found.kept) + sum(found.left_out.values()) == len(recorded)
    assert all(count > 0 for count in found.left_out.values())


@given(sessions, settings_)
def test_what_is_kept_is_good_enough_and_the_best_of_its_task(recorded, settings):
    kept = select(recorded, settings).kept
    assert all(t.reward >= (settings.min_reward or 0.0) for t in kept)
    for task in {t.task_id for t in kept}:
        mine = [t.reward for t in kept if t.task_id == task]
        every = [
            t.reward
            for t in recorded
            if t.task_id == task
            and t.outcome == make_trajectory(reward=t.reward).outcome
            and any(x.loss_mask.any() for x in t.traces)
        ]
        assert sorted(mine) == sorted(every)[-len(mine) :]
        assert settings.best_of is None or len(mine) <= settings.best_of


@given(sessions, settings_)
def test_selecting_twice_changes_nothing(recorded, settings):
    once = select(recorded, settings).kept
    assert select(once, settings).kept == once


def test_the_reasons_tell_sessions_apart():
    recorded = [
        session(outcome=Failed("running", "x")),
        session(reward=0.2),
        session(tokens=0),
        session(tokens=5),
        session(tokens=2),
        session(outcome=TimedOut("running", Grade(1.0, True)), tokens=3),
    ]
    found = select(recorded, SftSettings(min_reward=0.5, best_of=1))
    assert found.kept == (recorded[4],)
    assert found.left_out == {
        "not_graded": 1,
        "reward_too_low": 1,
        "no_trained_token": 1,
        "not_among_the_best": 2,
    }
