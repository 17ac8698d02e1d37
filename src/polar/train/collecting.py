"""Which tasks a step takes, and its groups: collected, and refilled where they teach nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from polar.train.begun import Begun, Collect
from polar.train.loop_settings import LoopSettings
from polar.train.loop_state import Late
from polar.train.standing import is_graded
from polar.types import Group, Task

__all__ = ["Collection", "Collector"]


@dataclass(frozen=True, slots=True)
class Collection:
    """The sessions of a step."""

    groups: tuple[Group, ...]
    rollout_s: float
    """From when the step was begun, or the one before it was complete, until it was complete."""
    complete_at: float
    """When it was complete, in seconds."""
    refilled: int
    """Groups that were collected in place of groups without spread."""
    carried: int = 0
    """Groups of the step before, which did not wait for them."""
    late: tuple[Late, ...] = ()
    """Groups of this step, which the next one trains."""


class Collector:
    """Collects the groups of a step; which tasks it takes follows from the seed alone.

    Args:
        collect: Runs sessions of the policy.
        tasks: Tasks to learn from.
        settings: Tasks and sessions of a step, refills, late groups.
        seed: Seed of the order of tasks.
        teaches: Tells whether a group has something to learn from; the others are refilled.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        collect: Collect,
        tasks: Sequence[Task],
        *,
        settings: LoopSettings,
        seed: int,
        teaches: Callable[[Group], bool],
        clock: Callable[[], float],
    ) -> None:
        self._collect = collect
        self._tasks = tuple(tasks)
        self._settings = settings
        self._seed = seed
        self._teaches = teaches
        self._clock = clock
        self._open: set[Begun] = set()
        self._late: list[tuple[Begun, tuple[Late, ...]]] = []
        self._finished_at = clock()

    async def collect(self, step: int) -> Collection:
        """Collect a step's groups from the first to the last."""
        wanted = asyncio.Event()
        wanted.set()
        return await self.finish(self.begin(step), wanted)

    def begin(self, step: int) -> Begun:
        """Let the sessions of a step queue for slots."""
        return self._begin(step, dict(enumerate(self.tasks_of(step))))

    async def finish(self, begun: Begun, wanted: asyncio.Event) -> Collection:
        """Wait for the groups of a step, and for those that the step before it left.

        A group without spread is replaced by one of a fresh task. While `wanted` is set up to
        `late_groups` groups are not waited for: the next step trains them, so that no session is
        lost for having been a long one.

        Source: dynamic sampling, DAPO (arXiv 2503.14476) §3.2.

        Raises:
            Exception: Whatever broke the collection.
        """
        carried = await self._carried()
        own, late = await begun.enough(wanted)
        if late:
            self._late.append((begun, late))
        else:
            self._open.discard(begun)
        refills = await self._refill(begun.step, own, lacking=len(late))
        groups = self._as_settled((*carried, *own, *refills), begun.step)
        since = max(begun.started, self._finished_at)
        self._finished_at = self._clock()
        return Collection(
            groups=groups,
            rollout_s=self._finished_at - since,
            complete_at=self._finished_at,
            refilled=len(refills),
            carried=len(carried),
            late=late,
        )

    def carry(self, late: Sequence[Late]) -> None:
        """Collect what an earlier process of the run did not wait for."""
        by_step: dict[int, list[Late]] = {}
        for each in late:
            by_step.setdefault(each.step, []).append(each)
        for step, ones in by_step.items():
            tasks = self.tasks_of(step)
            begun = self._begin(step, {one.place: tasks[one.place] for one in ones})
            self._late.append((begun, tuple(ones)))

    async def aclose(self) -> None:
        """Cancel what still runs."""
        for begun in self._open:
            await begun.aclose()
        self._open.clear()
        self._late.clear()

    def _begin(self, step: int, tasks: Mapping[int, Task]) -> Begun:
        begun = Begun(
            self._collect,
            tasks,
            samples=self._settings.group_size,
            step=step,
            may_lack=self._settings.late_groups,
            started=self._clock(),
        )
        self._open.add(begun)
        return begun

    async def _carried(self) -> tuple[Group, ...]:
        """Wait for the groups that the step before did not wait for."""
        groups: list[Group] = []
        for begun, late in self._late:
            groups += await begun.those(late)
            self._open.discard(begun)
        self._late.clear()
        return tuple(groups)

    async def _refill(
        self, step: int, own: tuple[Group, ...], *, lacking: int
    ) -> tuple[Group, ...]:
        """Collect fresh tasks in place of groups without spread; late ones are taken to have it."""
        refills: tuple[Group, ...] = ()
        spare = self._spare_tasks(step)
        wanted = self._settings.tasks_per_step - lacking
        for refill in range(1, self._settings.refills + 1):
            missing = wanted - sum(self._teaches(group) for group in (*own, *refills))
            fresh, spare = spare[:missing], spare[missing:]
            if not fresh:
                break
            refills += await self._collect(
                fresh, samples=self._settings.group_size, phase=f"refill{refill}", step=step
            )
        return refills

    def _as_settled(self, groups: tuple[Group, ...], step: int) -> tuple[Group, ...]:
        if not self._settings.shuffled_rewards:
            return groups
        rng = random.Random(f"{self._seed}/control/{step}")
        return tuple(_with_shuffled_rewards(group, rng) for group in groups)

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
