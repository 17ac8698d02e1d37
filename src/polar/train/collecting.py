"""Which tasks a step takes, and its groups: collected, and refilled where they teach nothing."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from polar.train.loop_settings import LoopSettings
from polar.train.standing import has_spread, is_graded
from polar.types import Group, Task

__all__ = ["Collect", "Collection", "Collector"]


class Collect(Protocol):
    """Runs sessions: every task `samples` times; groups in the order of the tasks."""

    def __call__(
        self, tasks: Sequence[Task], *, samples: int, phase: str, step: int
    ) -> Awaitable[tuple[Group, ...]]:
        """Start collecting."""
        ...


@dataclass(frozen=True, slots=True)
class Collection:
    """The sessions of a step."""

    groups: tuple[Group, ...]
    rollout_s: float
    refilled: int
    """Groups that were collected in place of groups without spread."""


class Collector:
    """Collects the groups of a step; which tasks it takes follows from the seed alone.

    Args:
        collect: Runs sessions of the policy.
        tasks: Tasks to learn from.
        settings: Tasks and sessions of a step, refills.
        seed: Seed of the order of tasks.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        collect: Collect,
        tasks: Sequence[Task],
        *,
        settings: LoopSettings,
        seed: int,
        clock: Callable[[], float],
    ) -> None:
        self._collect = collect
        self._tasks = tuple(tasks)
        self._settings = settings
        self._seed = seed
        self._clock = clock

    async def collect(self, step: int) -> Collection:
        """Collect a step's groups, and those of fresh tasks for each group without spread.

        Source: dynamic sampling, DAPO (arXiv 2503.14476) §3.2.
        """
        started = self._clock()
        samples, chosen = self._settings.group_size, self.tasks_of(step)
        groups = await self._collect(chosen, samples=samples, phase="train", step=step)
        spare = self._spare_tasks(step)
        for refill in range(1, self._settings.refills + 1):
            lacking = self._settings.tasks_per_step - sum(has_spread(group) for group in groups)
            fresh, spare = spare[:lacking], spare[lacking:]
            if not fresh:
                break
            groups += await self._collect(
                fresh, samples=samples, phase=f"refill{refill}", step=step
            )
        refilled = len(groups) - len(chosen)
        if self._settings.shuffled_rewards:
            rng = random.Random(f"{self._seed}/control/{step}")
            groups = tuple(_with_shuffled_rewards(group, rng) for group in groups)
        return Collection(groups, self._clock() - started, refilled)

    def tasks_of(self, step: int) -> tuple[Task, ...]:
        """Choose a step's tasks: seeded passes over all tasks, none twice in a pass."""
        per_pass = max(1, len(self._tasks) // self._settings.tasks_per_step)
        turn, offset = divmod(step - 1, per_pass)
        order = self._draw(len(self._tasks), turn)
        start = offset * self._settings.tasks_per_step
        return order[start : start + self._settings.tasks_per_step]

    def warm_start_tasks(self, count: int) -> tuple[Task, ...]:
        """Choose the tasks that the expert shows."""
        return self._draw(count, "warm")

    def _spare_tasks(self, step: int) -> tuple[Task, ...]:
        """Put the tasks that a step does not take in an order of its own."""
        chosen = {task.id for task in self.tasks_of(step)}
        order = self._draw(len(self._tasks), f"spare/{step}")
        return tuple(task for task in order if task.id not in chosen)

    def _draw(self, count: int, purpose: object) -> tuple[Task, ...]:
        rng = random.Random(f"{self._seed}/{purpose}")
        return tuple(rng.sample(self._tasks, min(count, len(self._tasks))))


def _with_shuffled_rewards(group: Group, rng: random.Random) -> Group:
    """Deal the graded sessions' rewards out anew; the outcomes stay."""
    graded = [t for t in group.trajectories if is_graded(t.outcome)]
    rewards = iter(rng.sample([t.reward for t in graded], len(graded)))
    return replace(
        group,
        trajectories=tuple(
            replace(t, reward=next(rewards)) if is_graded(t.outcome) else t
            for t in group.trajectories
        ),
    )
