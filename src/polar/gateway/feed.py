"""The growing reply of one call, followed by any number of readers from its start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from polar.errors import PolarError
from polar.rendering import joined
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
            reader.stop_alarm()
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
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Say that there is something new."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def stop_alarm(self) -> None:
        """Wait for no time any more."""
        if self._alarm is not None:
            self._alarm.cancel()

    async def begun(self, *, until: float) -> None:
        """Wait until there is something to read, or the end, or the time is up.

        Args:
            until: Time of the event loop; never earlier than it was for the wait before.
        """
        while not self._pending() and self._feed.ending is None and self._loop.time() < until:
            if self._alarm is None:
                self._alarm = self._loop.call_at(until, self._ring)
            await self._wait()

    async def more(self, *, until: float) -> Sequence[Delta]:
        """Wait for deltas not read yet; nothing comes back at the end or after the time is up.

        Deltas that go on with one text come as one: whoever is behind has less to send.

        Args:
            until: Time of the event loop; never earlier than it was for the wait before.
        """
        await self.begun(until=until)
        deltas = self._feed.deltas[self._position :]
        self._position += len(deltas)
        return joined(deltas)

    @property
    def ending(self) -> Ending | None:
        """How the call ended, once everything before it was read."""
        return None if self._pending() else self._feed.ending

    async def whole(self) -> Ending:
        """Wait for the end."""
        while self._feed.ending is None:
            await self._wait()
        return self._feed.ending

    async def _wait(self) -> None:
        self._news = self._loop.create_future()
        await self._news

    def _ring(self) -> None:
        """Look at the time: one alarm stands for many waits, and may be early for the last."""
        self._alarm = None
        self.wake()

    def _pending(self) -> bool:
        return self._position < len(self._feed.deltas)
