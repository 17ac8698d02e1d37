"""The training loop: order of things, time, and how it goes on after an interruption."""

import asyncio
import json
import threading

import pytest
from loop_cases import Bench

from polar.errors import ConfigError, JournalError, TrainingError
from polar.train.loop_state import LoopState, wilson_interval

TIMES = {"rollout_s", "wait_s", "train_s", "spent_s"}


def without_times(rows):
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def full_disk(path):
    raise OSError(28, "No space left on device")


async def saved(folder):
    return await asyncio.to_thread(LoopState.load, folder / "loop.json")


async def test_phases_come_in_order_and_every_update_is_served(tmp_path):
    bench = Bench(tmp_path, steps=2, warm_start={"sessions": 3})
    before, after = await bench.loop.run()
    assert bench.diary == [
        "pause",
        "serve 0",
        "warm_start 0",
        "pause",
        "serve 1",
        "heldout_before 0",
        "train 1",
        "pause",
        "serve 2",
        "train 2",
        "pause",
        "serve 3",
        "heldout_after 2",
    ]
    assert [row["phase"] for row in bench.rows] == [
        "warm_start",
        "heldout_before",
        "train",
        "train",
        "heldout_after",
    ]
    assert bench.kept == [
        ("warm_start", 0, 3),
        ("heldout_before", 0, 4),
        ("train", 1, 2),
        ("train", 2, 2),
        ("heldout_after", 2, 4),
    ]
    assert (before.sessions, after.sessions) == (4, 4)


async def test_the_warm_start_and_the_evaluations_can_be_left_out(tmp_path):
    bench = Bench(tmp_path, steps=1, heldout_sessions=0)
    assert await bench.loop.run() == (None, None)
    assert [entry for entry in bench.diary if " 1" in entry] == ["train 1", "serve 1"]


async def test_an_expert_that_never_passes_is_an_error(tmp_path):
    bench = Bench(tmp_path, warm_start={"sessions": 2})
    bench.expert_passes = False
    with pytest.raises(TrainingError, match="no session of the expert passed"):
        await bench.loop.run()


async def test_no_step_is_begun_that_would_exceed_the_time(tmp_path):
    bench = Bench(tmp_path, steps=100, minutes=10)
    bench.seconds = 60.0
    await bench.loop.run()
    assert bench.loop.spent_s() <= 600
    assert bench.loop.state.step == 7  # the first evaluation, 7 steps, the last evaluation: 9 of 10


async def test_every_task_comes_once_in_a_pass_and_the_seed_decides_when(tmp_path):
    chosen = []
    for name in "ab":
        bench = Bench(tmp_path / name, steps=8)
        await bench.loop.run()
        chosen.append(bench.chosen)
    assert chosen[0] == chosen[1]
    first, second = chosen[0][:4], chosen[0][4:]
    for turn in (first, second):
        assert len({task for step in turn for task in step}) == 8
    assert first != second


async def cancelled_in_step(bench: Bench, step: int) -> None:
    """Run, and cancel while a step is being trained, before its update."""
    training, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        if bench.trainer.weight_version == step - 1:
            training.set()
            go_on.wait(timeout=30)

    bench.trainer.during_step = hold
    running = asyncio.create_task(bench.loop.run())
    await asyncio.to_thread(training.wait, 30)
    running.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_cancel_in_training_leaves_and_saves_the_last_finished_step(tmp_path):
    bench = Bench(tmp_path, steps=4)
    await cancelled_in_step(bench, 3)
    assert bench.trainer.weight_version == 2
    state = await saved(tmp_path)
    assert (state.step, state.weight_version) == (2, 2)
    assert json.loads(state.trainer_path(tmp_path).read_text())[0] == 2


async def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path):
    whole = Bench(tmp_path / "whole", steps=5, warm_start={"sessions": 2})
    whole_ends = await whole.loop.run()
    first = Bench(tmp_path / "cut", steps=5, warm_start={"sessions": 2})
    await cancelled_in_step(first, 4)
    second = Bench(tmp_path / "cut", steps=5, warm_start={"sessions": 2})
    await asyncio.to_thread(second.loop.resume)
    assert second.loop.state.step == 2
    ends = await second.loop.run()
    assert without_times(first.rows + second.rows) == without_times(whole.rows)
    assert second.trainer.weights == whole.trainer.weights
    assert (ends[0].pass_at_1, ends[1].pass_at_1) == tuple(e.pass_at_1 for e in whole_ends)


async def test_a_step_that_ends_while_it_is_cancelled_counts_and_is_on_record(tmp_path):
    bench = Bench(tmp_path, steps=3)
    updated, go_on = threading.Event(), threading.Event()
    train = bench.trainer.step

    def step(groups, *, progress, before_update):
        metrics = train(groups, progress=progress, before_update=before_update)
        updated.set()
        go_on.wait(timeout=30)
        return metrics

    bench.trainer.step = step
    running = asyncio.create_task(bench.loop.run())
    await asyncio.to_thread(updated.wait, 30)
    running.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bench.rows[-1]["phase"] == "train"
    state = await saved(tmp_path)
    assert (state.step, state.weight_version) == (1, bench.trainer.weight_version)


async def test_a_kill_between_the_two_writes_of_a_save_leaves_the_earlier_state(tmp_path):
    bench = Bench(tmp_path, steps=2, save_every=1)
    await bench.loop.run()
    later = (await saved(tmp_path)).weight_version + 1
    (tmp_path / f"trainer-{later:05d}").write_text("[99, 99.0]")
    again = Bench(tmp_path, steps=2)
    await asyncio.to_thread(again.loop.resume)
    assert again.trainer.weights == bench.trainer.weights


async def test_a_cancel_during_a_save_waits_for_it(tmp_path):
    bench = Bench(tmp_path, steps=2, save_every=1)
    writing, go_on, saves = threading.Event(), threading.Event(), []
    save_state = bench.trainer.save_state

    def slow(path):
        saves.append(path.name)
        writing.set()
        go_on.wait(timeout=30)
        save_state(path)

    bench.trainer.save_state = slow
    running = asyncio.create_task(bench.loop.run())
    await asyncio.to_thread(writing.wait, 30)
    running.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert saves == ["trainer-00001"]
    assert (await saved(tmp_path)).step == 1


async def test_every_state_is_told_of_when_it_is_on_disk(tmp_path):
    bench = Bench(tmp_path, steps=5, save_every=2)
    await bench.loop.run()
    assert bench.saved == [2, 4, 5]


async def test_a_state_that_could_not_be_saved_counts_no_rows(tmp_path):
    bench = Bench(tmp_path, steps=2, save_every=1)
    bench.trainer.save_state = full_disk
    with pytest.raises(JournalError):
        await bench.loop.run()
    assert bench.saved == []


async def test_only_one_state_of_the_trainer_is_kept(tmp_path):
    await Bench(tmp_path, steps=4, save_every=1).loop.run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop.json", "trainer-00004"]


async def test_the_time_of_earlier_processes_counts(tmp_path):
    bench = Bench(tmp_path, steps=2)
    bench.seconds = 30.0
    await bench.loop.run()
    again = Bench(tmp_path, steps=2)
    await asyncio.to_thread(again.loop.resume)
    assert again.loop.spent_s() == 120.0


async def test_a_run_that_saved_nothing_begins_anew(tmp_path):
    bench = Bench(tmp_path, steps=1)
    await asyncio.to_thread(bench.loop.resume)
    assert bench.loop.state.step == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2, "before": null}', '{"version"'])
async def test_a_state_that_cannot_be_read_is_one_clear_error(tmp_path, text):
    (tmp_path / "loop.json").write_text(text)
    with pytest.raises(ConfigError, match="the run's state cannot be read"):
        await saved(tmp_path)


async def test_afull_disk_at_the_end_says_what_to_do(tmp_path):
    bench = Bench(tmp_path, steps=1)
    bench.trainer.save_state = full_disk
    with pytest.raises(JournalError, match="No space left"):
        await bench.loop.run()


async def test_an_error_is_not_hidden_by_a_state_that_cannot_be_saved(tmp_path):
    bench = Bench(tmp_path, steps=1)

    def broken(groups, *, progress, before_update):
        raise TrainingError("the loss is not finite")

    bench.trainer.save_state, bench.trainer.step = full_disk, broken
    with pytest.raises(TrainingError, match="not finite") as raised:
        await bench.loop.run()
    assert "No space left" in raised.value.__notes__[0]


def test_a_resumed_run_keeps_the_rows_that_its_state_counts():
    state = LoopState(step=2, warm_started=True, before=None, spent_s=0, weight_version=3)
    assert state.has("warm_start", 0)
    assert state.has("train", 2)
    assert not state.has("train", 3)
    assert not state.has("heldout_before", 0)
    assert not state.has("heldout", 2)
    assert not state.has("heldout_after", 2)


@pytest.mark.parametrize(
    ("passed", "total", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
        (1, 96, 0.0018, 0.0567),
        (0, 0, 0.0, 1.0),
    ],
)
def test_the_wilson_interval_has_its_known_values(passed, total, low, high):
    assert wilson_interval(passed, total) == pytest.approx((low, high), abs=1e-4)
