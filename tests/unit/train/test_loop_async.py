"""Sampling that goes on while a step is trained, its bound, refills and evaluations between."""

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_cases import Bench, session
from train_cases import make_group, make_trace, make_trajectory

from polar.errors import TrainingError
from polar.train.lessons import credited_groups
from polar.train.loop_state import LoopState
from polar.train.settings import TrainSettings
from polar.train.staleness import within_bound
from polar.train.standing import has_spread
from polar.types import Failed, Grade, TimedOut


def trained_rows(bench):
    return [row for row in bench.rows if row["phase"] == "train"]


async def test_the_next_step_is_sampled_while_this_one_is_trained(tmp_path):
    bench = Bench(tmp_path, steps=2, max_staleness=1)
    sampled = threading.Event()

    async def tell(phase, step):
        if (phase, step) == ("train", 2):
            sampled.set()

    bench.while_collecting = tell
    seen = []
    bench.trainer.during_step = lambda: seen.append(sampled.wait(timeout=30))
    await bench.loop.run()
    assert seen == [True, True]


async def test_sampling_is_held_back_only_for_the_update(tmp_path):
    bench = Bench(tmp_path, steps=1, max_staleness=1, heldout_sessions=0)
    bench.trainer.during_step = lambda: bench.diary.append("computing gradients")
    await bench.loop.run()
    assert bench.diary == ["pause", "serve 0", "train 1", "computing gradients", "pause", "serve 1"]


async def test_without_staleness_sampling_waits_for_the_whole_step(tmp_path):
    bench = Bench(tmp_path, steps=1, heldout_sessions=0)
    bench.trainer.during_step = lambda: bench.diary.append("computing gradients")
    await bench.loop.run()
    assert bench.diary == ["pause", "serve 0", "train 1", "pause", "computing gradients", "serve 1"]


@pytest.mark.parametrize("bound", [0, 1, 3])
async def test_no_token_is_older_than_the_bound_and_none_is_dropped_for_it(tmp_path, bound):
    bench = Bench(tmp_path, steps=8, max_staleness=bound, heldout_sessions=0)
    await bench.loop.run()
    rows = trained_rows(bench)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert max(row["staleness_max"] for row in rows) <= bound
    assert all(row["stale_sessions"] == 0 for row in rows)


async def test_a_step_with_no_update_serves_no_weights(tmp_path):
    bench = Bench(tmp_path, steps=1, max_staleness=1, heldout_sessions=0)
    train = bench.trainer.step
    bench.trainer.step = lambda groups, *, progress, before_update: train(
        groups, progress=progress, before_update=lambda: None
    )
    await bench.loop.run()
    assert bench.diary == ["pause", "serve 0", "train 1"]


async def test_a_broken_collection_ends_the_run_with_its_own_error(tmp_path):
    bench = Bench(tmp_path, steps=5, max_staleness=2)

    async def break_at(phase, step):
        if (phase, step) == ("train", 3):
            raise TrainingError("the sandbox is gone")

    bench.while_collecting = break_at
    with pytest.raises(TrainingError, match="the sandbox is gone"):
        await bench.loop.run()
    assert bench.loop.state.step == 2


async def test_a_cancel_ends_what_is_collected_ahead(tmp_path):
    bench = Bench(tmp_path, steps=5, max_staleness=1)
    ahead, ended = asyncio.Event(), []

    async def wait_for_ever(phase, step):
        if (phase, step) == ("train", 2):
            ahead.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(step)

    bench.while_collecting = wait_for_ever
    running = asyncio.create_task(bench.loop.run())
    async with asyncio.timeout(30):
        await ahead.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == [2]


async def test_a_resumed_asynchronous_run_goes_on_after_its_last_saved_step(tmp_path):
    bench = Bench(tmp_path, steps=2, max_staleness=1)
    await bench.loop.run()
    again = Bench(tmp_path, steps=4, max_staleness=1)
    await asyncio.to_thread(again.loop.resume)
    await again.loop.run()
    assert [row["step"] for row in trained_rows(again)] == [3, 4]


async def test_the_heldout_tasks_are_measured_between_the_steps_once_each(tmp_path):
    bench = Bench(tmp_path, steps=5, evaluate_every=2, save_every=1)
    await bench.loop.run()
    found = [(row["phase"], row["step"]) for row in bench.rows if "pass_at_1" in row]
    assert found == [
        ("heldout_before", 0),
        ("heldout", 2),
        ("heldout", 4),
        ("heldout_after", 5),
    ]


def test_a_resumed_run_keeps_the_evaluations_it_counts():
    state = LoopState(
        step=4, warm_started=True, before=None, spent_s=0, weight_version=4, evaluated=2
    )
    assert state.has("heldout", 2)
    assert not state.has("heldout", 4)


class HalfBarren(Bench):
    """Groups of tasks whose names end in an even digit earn the same everywhere."""

    def sessions_of(self, task, reward, samples, version):
        barren = int(task.id[-1]) % 2 == 0
        return tuple(session(0.0 if barren else float(i), version) for i in range(samples))


async def test_groups_without_spread_are_refilled_with_fresh_tasks(tmp_path):
    bench = HalfBarren(tmp_path, steps=3, refills=3, heldout_sessions=0)
    trained = []
    train = bench.trainer.step

    def step(groups, **arguments):
        trained.append(groups)
        return train(groups, **arguments)

    bench.trainer.step = step
    await bench.loop.run()
    for groups, row in zip(trained, trained_rows(bench), strict=True):
        assert sum(has_spread(group, TrainSettings()) for group in groups) >= 2
        assert len({group.task.id for group in groups}) == len(groups)
        assert row["groups_refilled"] == len(groups) - 2


async def test_refills_end_when_there_are_no_tasks_left(tmp_path):
    bench = Bench(tmp_path, steps=1, refills=20, heldout_sessions=0)
    await bench.loop.run()
    assert trained_rows(bench)[0]["groups_refilled"] == 6


async def test_a_refilled_step_draws_the_same_tasks_again_after_a_restart(tmp_path):
    chosen = []
    for name in "ab":
        bench = HalfBarren(tmp_path / name, steps=2, refills=2, heldout_sessions=0)
        await bench.loop.run()
        chosen.append([entry for entry in bench.diary if not entry.startswith("serve")])
    assert chosen[0] == chosen[1]


def test_only_graded_sessions_make_a_spread():
    broken = make_trajectory(reward=0.0, outcome=Failed("running", "gone"))
    assert not has_spread(make_group(session(1.0), broken), TrainSettings())
    assert has_spread(make_group(session(1.0), session(0.0), broken), TrainSettings())


OUTCOMES = [
    None,
    Failed("running", "gone"),
    TimedOut("running", Grade(0.0, False)),
    TimedOut("preparing"),
]


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from(OUTCOMES)), min_size=1, max_size=5
    ),
    st.fixed_dictionaries(
        {
            "algorithm": st.sampled_from(["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"]),
            "failed_sessions": st.sampled_from(["baseline", "exclude"]),
            "truncated_sessions": st.sampled_from(["train", "baseline", "exclude"]),
            "credit": st.sampled_from(["outcome", "steps"]),
        }
    ),
)
def test_the_groups_that_are_refilled_are_those_that_teach_nothing(sessions, chosen):
    settings = TrainSettings(**chosen)
    trace = make_trace([1, 2, 3], [1, 2])
    group = make_group(*(make_trajectory(trace, reward=r, outcome=o) for r, o in sessions))
    assert has_spread(group, settings) is bool(credited_groups([group], settings)[0])


def test_a_session_with_one_token_too_old_is_left_out_and_counted():
    old = make_trajectory(make_trace([1, 2], [1], version=3), make_trace([1, 2], [1], version=1))
    young = make_trajectory(make_trace([1, 2, 3], [1, 2], version=2))
    (group,), found = within_bound([make_group(old, young)], version=3, bound=1)
    assert group.trajectories == (young,)
    assert (found.stale_sessions, found.stale_tokens) == (1, 2)
    assert (found.staleness_mean, found.staleness_max) == (1.0, 1)


def test_sessions_without_a_trained_token_are_of_no_age():
    empty = make_trajectory()
    (group,), found = within_bound([make_group(empty)], version=9, bound=0)
    assert group.trajectories == (empty,)
    assert (found.staleness_mean, found.staleness_max) == (0.0, 0)


class Gambling(Bench):
    """Sessions of a group earn differently."""

    def sessions_of(self, task, reward, samples, version):
        return tuple(session(float(i % 2), version) for i in range(samples))


async def test_the_control_deals_each_groups_rewards_out_to_other_sessions(tmp_path):
    bench = Gambling(tmp_path, steps=1, group_size=8, shuffled_rewards=True, heldout_sessions=0)
    trained = []
    train = bench.trainer.step

    def step(groups, **arguments):
        trained.extend(groups)
        return train(groups, **arguments)

    bench.trainer.step = step
    await bench.loop.run()
    for group in trained:
        rewards = [t.reward for t in group.trajectories]
        earned = [t.outcome.grade.reward for t in group.trajectories]
        assert sorted(rewards) == sorted(earned)
        assert rewards != earned
