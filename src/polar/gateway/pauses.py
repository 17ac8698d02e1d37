"""When new calls have to wait, and for how long all of them did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Pauses"]


class Pauses:
    """A gate that is open or shut, and the time that it was shut.

    Args:
        monotonic: Seconds that only go forward.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._open = asyncio.Event()
        self._open.set()
        self._shut_since: float | None = None
        self._past_s = 0.0

    @property
    def paused(self) -> bool:
        """Whether the gate is shut."""
        return self._shut_since is not None

    def begin(self) -> None:
        """Shut the gate."""
        if self._shut_since is None:
            self._shut_since = self._monotonic()
            self._open.clear()

    def end(self) -> None:
        """Open the gate."""
        if self._shut_since is not None:
            self._past_s += self._monotonic() - self._shut_since
            self._shut_since = None
            self._open.set()

    def total_s(self) -> float:
        """Say for how long the gate was shut altogether, up to now."""
        current_s = 0.0 if self._shut_since is None else self._monotonic() - self._shut_since
        return self._past_s + current_s

    async def wait_open(self, *, timeout_s: float) -> None:
        """Wait for the gate to be open.

        Raises:
            TimeoutError: It stayed shut.
        """
        if not self._open.is_set():
            async with asyncio.timeout(timeout_s):
                await self._open.wait()
