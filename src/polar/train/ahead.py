"""Collects the groups of the coming steps while earlier ones are trained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Ahead", "collecting_ahead"]

Collected = TypeVar("Collected")


class Ahead(Generic[Collected]):
    """Hands out what was collected for each step, in order.

    Steps are collected one after the other, and none before all but `depth` of the steps before
    it are trained: so its oldest token is at most `depth` weight versions old when it is trained,
    and as young as that allows.

    Args:
        collect: Collects for a step.
        first: The next step to be trained.
        last: The last step that is ever wanted.
        depth: Steps that are collected before their turn.
    """

    def __init__(
        self,
        collect: Callable[[int], Awaitable[Collected]],
        *,
        first: int,
        last: int,
        depth: int,
    ) -> None:
        self._collect = collect
        self._steps = range(first, last + 1)
        self._ready: asyncio.Queue[Collected | _Broken] = asyncio.Queue()
        self._allowed = asyncio.Semaphore(depth + 1)

    async def take(self) -> Collected:
        """Wait for the next step's collection.

        Raises:
            Exception: Whatever broke the collection.
        """
        item = await self._ready.get()
        if isinstance(item, _Broken):
            raise item.error
        return item

    def trained(self) -> None:
        """Let the collection go one step further."""
        self._allowed.release()

    async def run(self) -> None:
        """Collect until the last step, or until something breaks."""
        try:
            for step in self._steps:
                await self._allowed.acquire()
                self._ready.put_nowait(await self._collect(step))
        except Exception as error:
            self._ready.put_nowait(_Broken(error))


@dataclass(frozen=True, slots=True)
class _Broken:
    error: Exception


@asynccontextmanager
async def collecting_ahead(
    collect: Callable[[int], Awaitable[Collected]], *, first: int, last: int, depth: int
) -> AsyncIterator[Ahead[Collected]]:
    """Collect in the background until the context is left, which cancels what still runs."""
    ahead = Ahead(collect, first=first, last=last, depth=depth)
    # No TaskGroup: it would wrap what the body raises.
    running = asyncio.create_task(ahead.run(), name="collecting ahead")
    try:
        yield ahead
    finally:
        running.cancel()
        await asyncio.wait({running})
