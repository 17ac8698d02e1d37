"""A step whose sessions run, or queue for slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from polar.train.loop_state import Late
from polar.types import Group, Task, TaskId

__all__ = ["Begun", "Collect"]


class Collect(Protocol):
    """Runs sessions: every task `samples` times; groups in the order of the tasks."""

    def __call__(
        self,
        tasks: Sequence[Task],
        *,
        samples: int,
        phase: str,
        step: int,
        places: Sequence[int] | None = None,
        on_group: Callable[[Group], None] = lambda group: None,
    ) -> Coroutine[Any, Any, tuple[Group, ...]]:
        """Run them.

        Args:
            tasks: What to run.
            samples: Sessions of a task.
            phase: Names the sessions, with the step and the task's place.
            step: The step that wants them.
            places: The tasks' numbers within the step; absent: 0, 1, and so on.
            on_group: Called with each group as soon as it is complete.
        """
        ...


class Begun:
    """Collects the groups of a step in the background.

    Args:
        collect: Runs sessions of the policy.
        tasks: The step's tasks, none twice, by their number within the step.
        samples: Sessions of a task.
        step: The step.
        may_lack: Groups that may be late.
        started: When it was begun, in seconds.
    """

    def __init__(
        self,
        collect: Collect,
        tasks: Mapping[int, Task],
        *,
        samples: int,
        step: int,
        may_lack: int,
        started: float,
    ) -> None:
        self.step = step
        self.started = started
        self._tasks = tasks
        self._may_lack = may_lack
        self._done: dict[TaskId, Group] = {}
        self._few_lack = asyncio.Event()
        self._running = asyncio.create_task(
            collect(
                tuple(tasks.values()),
                samples=samples,
                phase="train",
                step=step,
                places=tuple(tasks),
                on_group=self._add,
            ),
            name=f"groups of step {step}",
        )

    async def enough(self, wanted: asyncio.Event) -> tuple[tuple[Group, ...], tuple[Late, ...]]:
        """Wait for all groups, or while they are wanted for all but those that may be late.

        Returns:
            The groups that are complete, in order, and which ones are late.

        Raises:
            Exception: Whatever broke the collection.
        """
        if self._may_lack:
            waiting = asyncio.create_task(self._wanted_with_few_lacking(wanted))
            await asyncio.wait({self._running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        late = tuple(
            Late(self.step, place)
            for place, task in self._tasks.items()
            if task.id not in self._done
        )
        if not late or not self._may_lack or self._running.done():
            return await asyncio.shield(self._running), ()
        return tuple(
            self._done[task.id] for task in self._tasks.values() if task.id in self._done
        ), late

    async def those(self, late: Sequence[Late]) -> list[Group]:
        """Wait for groups that were late.

        Raises:
            Exception: Whatever broke the collection.
        """
        await asyncio.shield(self._running)
        return [self._done[self._tasks[one.place].id] for one in late]

    async def aclose(self) -> None:
        """Cancel what still runs."""
        self._running.cancel()
        await asyncio.wait({self._running})
        if not self._running.cancelled():
            self._running.exception()

    def _add(self, group: Group) -> None:
        self._done[group.task.id] = group
        if len(self._tasks) - len(self._done) <= self._may_lack:
            self._few_lack.set()

    async def _wanted_with_few_lacking(self, wanted: asyncio.Event) -> None:
        await self._few_lack.wait()
        await wanted.wait()
