"""Steps whose collections overlap, and groups that a step does not wait for."""

import asyncio

import pytest
from loop_cases import Bench
from pydantic import ValidationError

from polar.train.begun import Begun
from polar.train.loop_settings import LoopSettings
from polar.train.loop_state import Late, LoopState


class Held(Bench):
    """The last task of a step's collection is held until it is let go, or for ever."""

    def __init__(self, folder, *, held_steps=(1,), **settings):
        super().__init__(folder, heldout_sessions=0, **settings)
        self.held_steps = held_steps
        self.let_go = asyncio.Event()
        self.trained: list[list[str]] = []
        self.before_group = self.hold
        train = self.trainer.step

        def step(groups, **arguments):
            self.trained.append([group.task.id for group in groups])
            return train(groups, **arguments)

        self.trainer.step = step

    async def hold(self, step, task):
        if step in self.held_steps and task.id == self.chosen[step - 1][-1]:
            await self.let_go.wait()


async def test_sessions_of_the_next_step_run_while_the_last_ones_of_this_step_go_on(tmp_path):
    bench = Held(tmp_path, steps=2, max_staleness=1)

    async def tell(phase, step):
        if step == 2:
            bench.let_go.set()

    bench.while_collecting = tell
    async with asyncio.timeout(30):
        await bench.loop.run()
    assert [row["staleness_max"] for row in bench.rows] == [0, 1]


async def test_a_late_group_is_trained_in_the_next_step(tmp_path):
    bench = Held(tmp_path, steps=3, tasks_per_step=3, max_staleness=1, late_groups=1)
    bench.trainer.during_step = bench.let_go.set
    async with asyncio.timeout(30):
        await bench.loop.run()
    first, second, _ = bench.chosen
    assert bench.trained[0] == first[:2]
    assert bench.trained[1][0] == first[2]
    assert bench.rows[0]["groups_late"] == 1
    assert bench.rows[1]["groups_carried"] == 1
    assert all(row["stale_sessions"] == 0 for row in bench.rows)
    assert set(second) >= set(bench.trained[1][1:])


async def test_every_group_is_trained_once_however_late_groups_fall(tmp_path):
    bench = Held(
        tmp_path, steps=8, tasks_per_step=2, max_staleness=2, late_groups=1, held_steps=(1, 3, 4, 8)
    )
    bench.trainer.during_step = bench.let_go.set
    async with asyncio.timeout(30):
        await bench.loop.run()
    left = bench.loop.state.late
    trained = [task for step in bench.trained for task in step]
    assert len(trained) == 8 * 2 - len(left)
    assert max(row["staleness_max"] for row in bench.rows) <= 2
    assert sum(row["stale_sessions"] for row in bench.rows) == 0


async def test_a_group_is_waited_for_where_none_may_be_late(tmp_path):
    bench = Held(tmp_path, steps=1, max_staleness=1)
    running = asyncio.create_task(bench.loop.run())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not bench.trained
    bench.let_go.set()
    async with asyncio.timeout(30):
        await running
    assert bench.trained == bench.chosen


async def test_a_resumed_run_trains_the_groups_that_were_late(tmp_path):
    bench = Held(tmp_path, steps=1, max_staleness=1, late_groups=1)
    async with asyncio.timeout(30):
        await bench.loop.run()
    assert bench.loop.state.late == (Late(1, 1),)
    again = Bench(tmp_path, steps=2, max_staleness=1, late_groups=1, heldout_sessions=0)
    await asyncio.to_thread(again.loop.resume)
    async with asyncio.timeout(30):
        await again.loop.run()
    assert again.chosen[0] == bench.chosen[0][1:]
    assert again.rows[0]["groups_carried"] == 1


def test_late_groups_are_kept_with_the_state(tmp_path):
    state = LoopState(
        step=4, warm_started=True, before=None, spent_s=0, weight_version=4, late=(Late(4, 2),)
    )
    state.save(tmp_path / "loop.json")
    assert LoopState.load(tmp_path / "loop.json") == state


def test_late_groups_need_a_version_to_be_late_by():
    with pytest.raises(ValidationError, match="max_staleness of 1 or more"):
        LoopSettings(late_groups=1, max_staleness=0)


def test_a_step_cannot_be_late_as_a_whole():
    with pytest.raises(ValidationError, match="below tasks_per_step, which is 2"):
        LoopSettings(late_groups=2, tasks_per_step=2)


async def test_what_breaks_a_collection_is_told_to_who_waits_for_it():
    async def broken(tasks, **_):
        raise RuntimeError("no sandbox")

    begun = Begun(broken, {}, samples=1, step=1, may_lack=1, started=0.0)
    with pytest.raises(RuntimeError, match="no sandbox"):
        await begun.enough(asyncio.Event())
    await begun.aclose()
