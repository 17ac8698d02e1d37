"""The growing reply of one call, followed by any number of readers from its start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from polar.errors import PolarError
from polar.types import Delta, Reply

__all__ = ["Feed", "Reader"]

Ending = Reply | PolarError


class Feed:
    """Deltas and, at last, how the call ended.

    Args:
        on_deserted: Called when the last reader leaves before the end.
    """

    def __init__(self, on_deserted: Callable[[], None]) -> None:
        self._on_deserted = on_deserted
        self._readers: set[Reader] = set()
        self.deltas: list[Delta] = []
        self.ending: Ending | None = None

    @property
    def deserted(self) -> bool:
        """Whether nobody reads."""
        return not self._readers

    def put(self, deltas: Sequence[Delta]) -> None:
        """Add deltas."""
        if deltas:
            self.deltas.extend(deltas)
            self._tell()

    def finish(self, ending: Ending) -> None:
        """Say how the call ended; the first ending stays."""
        if self.ending is None:
            self.ending = ending
            self._tell()

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Follow the reply from its start; leaving the context is leaving the call."""
        reader = Reader(self)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
            if self.deserted and self.ending is None:
                self._on_deserted()

    def _tell(self) -> None:
        for reader in self._readers:
            reader.wake()


class Reader:
    """One follower of a feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._position = 0
        self._news = asyncio.Event()
        self.wake()

    def wake(self) -> None:
        """Say that there is something new."""
        self._news.set()

    async def begun(self, *, timeout_s: float) -> None:
        """Wait until there is something to read, or the end, or the time is up."""
        if self._pending() or self._feed.ending is not None:
            return
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()

    async def more(self, *, timeout_s: float) -> Sequence[Delta]:
        """Wait for deltas not read yet; nothing comes back at the end or after the time is up."""
        await self.begun(timeout_s=timeout_s)
        deltas = self._feed.deltas[self._position :]
        self._position += len(deltas)
        return deltas

    @property
    def ending(self) -> Ending | None:
        """How the call ended, once everything before it was read."""
        return None if self._pending() else self._feed.ending

    async def whole(self) -> Ending:
        """Wait for the end."""
        while self._feed.ending is None:
            self._news.clear()
            await self._news.wait()
        return self._feed.ending

    def _pending(self) -> bool:
        return self._position < len(self._feed.deltas)
