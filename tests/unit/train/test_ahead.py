"""How many steps are collected ahead: as many as training wants, and no more than the bound."""

import asyncio

from loop_cases import Bench

from polar.train.ahead import collecting_ahead


class Steps:
    """Is done with a step at once, unless it is held."""

    def __init__(self, *held: int) -> None:
        self.begun: list[int] = []
        self.held = {step: asyncio.Event() for step in held}

    def begin(self, step: int) -> int:
        self.begun.append(step)
        return step

    async def finish(self, begun: int, wanted: asyncio.Event) -> int:
        if begun in self.held:
            await self.held[begun].wait()
        return begun


async def settled() -> None:
    """Let everything go on that can."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_steps_that_would_lie_and_grow_old_are_begun_later():
    steps, ahead_of = Steps(), {}
    async with collecting_ahead(steps, first=1, last=20, depth=4) as ahead:
        for step in range(1, 21):
            assert await ahead.take() == step
            await settled()
            ahead_of[step] = len(steps.begun) - step
            ahead.trained()
            await settled()
    assert ahead_of[1] == 4
    assert set(list(ahead_of.values())[5:-1]) == {1}
    assert steps.begun == list(range(1, 21))


async def test_where_training_waits_steps_are_begun_earlier_again():
    steps = Steps(10, 12)
    async with collecting_ahead(steps, first=1, last=20, depth=3) as ahead:
        depths = {}
        for step in range(1, 16):
            if step in steps.held:
                asyncio.get_running_loop().call_later(0, steps.held[step].set)
            await ahead.take()
            depths[step] = ahead.depth
            await settled()
            ahead.trained()
            await settled()
    assert [depths[step] for step in (1, 9, 10, 11, 12, 15)] == [3, 1, 2, 2, 3, 1]


async def test_no_more_steps_are_collected_ahead_than_the_bound_allows_however_long_they_take():
    steps = Steps(*range(1, 21))
    async with collecting_ahead(steps, first=1, last=20, depth=2) as ahead:
        for step in range(1, 21):
            asyncio.get_running_loop().call_later(0, steps.held[step].set)
            assert await ahead.take() == step
            await settled()
            assert len(steps.begun) == min(20, step + 2)
            ahead.trained()


async def test_without_a_step_ahead_each_is_begun_when_the_one_before_is_trained():
    steps = Steps()
    async with collecting_ahead(steps, first=1, last=3, depth=0) as ahead:
        for step in range(1, 4):
            await ahead.take()
            await settled()
            assert (steps.begun, ahead.depth) == (list(range(1, step + 1)), 0)
            ahead.trained()


async def test_tokens_do_not_sit_at_the_bound_where_sampling_is_faster_than_training(tmp_path):
    bench = Bench(tmp_path, steps=12, max_staleness=4, heldout_sessions=0)
    loop = asyncio.get_running_loop()
    bench.trainer.during_step = lambda: asyncio.run_coroutine_threadsafe(settled(), loop).result()
    await bench.loop.run()
    ages = [row["staleness_max"] for row in bench.rows]
    assert max(ages) == 4
    assert ages[-4:] == [1, 1, 1, 1]
    assert bench.rows[-1]["steps_ahead"] == 1


async def test_how_long_a_collected_step_lay_is_told(tmp_path):
    bench = Bench(tmp_path, steps=2, max_staleness=1, heldout_sessions=0)
    loop = asyncio.get_running_loop()

    def train_for_a_while():
        asyncio.run_coroutine_threadsafe(settled(), loop).result()
        bench.now += 7.0

    bench.trainer.during_step = train_for_a_while
    await bench.loop.run()
    assert [row["lay_s"] for row in bench.rows] == [0.0, 7.0]
    assert [row["wait_s"] for row in bench.rows] == [0.0, 0.0]
