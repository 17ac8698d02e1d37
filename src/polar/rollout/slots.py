"""Slots of a stage, for which the sessions of earlier steps come first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Slots"]


class Slots:
    """A counting semaphore whose waiters have a rank.

    Sessions of a step wait behind those of the step before, also where one of these is run again,
    or replaced by one of a fresh task. Within a rank the first to come is the first to go on.

    Args:
        count: How many may hold a slot at the same time.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    @asynccontextmanager
    async def hold(self, rank: int) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        await self.acquire(rank)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, rank: int) -> None:
        """Wait for a slot; the lowest rank is served first."""
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot was given in the same breath
                self.release()
            raise

    def release(self) -> None:
        """Give a slot to whoever is first; what waits no longer is passed over."""
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
