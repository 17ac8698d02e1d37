"""Collects the groups of the coming steps while earlier ones are trained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

__all__ = ["Ahead", "Steps", "collecting_ahead"]

Begun = TypeVar("Begun")
Collected_co = TypeVar("Collected_co", covariant=True)
Collected = TypeVar("Collected")


class Steps(Protocol[Begun, Collected_co]):
    """Collects for one step after another."""

    def begin(self, step: int) -> Begun:
        """Let the step's sessions queue for slots."""
        ...

    def finish(self, begun: Begun, wanted: asyncio.Event) -> Awaitable[Collected_co]:
        """Wait for the step's groups; called for one step after another.

        Args:
            begun: The step, as it was begun.
            wanted: Set while training has nothing to do but to wait for this step.
        """
        ...


class Ahead(Generic[Begun, Collected]):
    """Hands out what was collected for each step, in order.

    No step is begun before all but `depth` of the steps before it are trained: so its oldest token
    is at most `depth` weight versions old when it is trained. Within that bound the sessions of a
    step queue for slots behind those of the step before: slots that have become free while the
    last sessions of a step go on are not left empty.

    Nor is a step begun so early that it only grows old: where training finds the step after the
    one it takes complete as well, the following ones are begun one step later, and where it has to
    wait, one step earlier, within the bound.

    Args:
        steps: Collects for a step.
        first: The next step to be trained.
        last: The last step that is ever wanted.
        depth: Most steps that are collected before their turn.
    """

    def __init__(
        self, steps: Steps[Begun, Collected], *, first: int, last: int, depth: int
    ) -> None:
        self._collects = steps
        self._steps = range(first, last + 1)
        self._begun: asyncio.Queue[Begun] = asyncio.Queue()
        self._ready: asyncio.Queue[Collected | _Broken] = asyncio.Queue()
        self._most = depth
        self._depth = depth
        self._trained = 0
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()

    @property
    def depth(self) -> int:
        """Steps that are collected before their turn, as things are now."""
        return self._depth

    async def take(self) -> Collected:
        """Wait for the next step's collection.

        Raises:
            Exception: Whatever broke the collection.
        """
        waits = self._ready.empty()
        self._wanted.set()
        try:
            item = await self._ready.get()
        finally:
            self._wanted.clear()
        self._pace(waited=waits)
        if isinstance(item, _Broken):
            raise item.error
        return item

    def trained(self) -> None:
        """Let the collection go one step further."""
        self._trained += 1
        self._changed.set()

    async def begin(self) -> None:
        """Begin one step after another, as far as the bound and the pace allow."""
        for before, step in enumerate(self._steps):
            while before > self._trained + self._depth:
                self._changed.clear()
                await self._changed.wait()
            self._begun.put_nowait(self._collects.begin(step))

    async def finish(self) -> None:
        """Finish one step after another until the last, or until something breaks."""
        try:
            for _ in self._steps:
                begun = await self._begun.get()
                self._ready.put_nowait(await self._collects.finish(begun, self._wanted))
        except Exception as error:
            self._ready.put_nowait(_Broken(error))

    def _pace(self, *, waited: bool) -> None:
        """Collect as few steps ahead as keep training from waiting; one is never in its way."""
        if waited:
            self._depth = min(self._depth + 1, self._most)
        elif not self._ready.empty():
            self._depth = max(self._depth - 1, min(1, self._most))
        self._changed.set()


@dataclass(frozen=True, slots=True)
class _Broken:
    error: Exception


@asynccontextmanager
async def collecting_ahead(
    steps: Steps[Begun, Collected], *, first: int, last: int, depth: int
) -> AsyncIterator[Ahead[Begun, Collected]]:
    """Collect in the background until the context is left; what was begun is not cancelled."""
    ahead = Ahead(steps, first=first, last=last, depth=depth)
    # No TaskGroup: it would wrap what the body raises.
    running = {
        asyncio.create_task(ahead.begin(), name="steps are begun"),
        asyncio.create_task(ahead.finish(), name="steps are finished"),
    }
    try:
        yield ahead
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
