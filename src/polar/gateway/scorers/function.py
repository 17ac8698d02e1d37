"""Scores with a Python function, in a thread that is left behind when it takes too long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from polar.errors import ScorerFailed
from polar.gateway.scorers.base import as_score
from polar.types import Call

__all__ = ["FunctionScorer"]


class FunctionScorer:
    """Calls a function in a daemon thread of its own.

    A thread cannot be killed. One that hangs is left behind and keeps nobody waiting, not even
    the end of the process; when as many hang as may, nothing is scored until one comes back.

    Args:
        function: Takes a call, returns a number or None.
        timeout_s: Longest time for one call.
        most_hanging: Most threads that may be left behind at a time.
    """

    def __init__(
        self, function: Callable[[Call], object], *, timeout_s: float, most_hanging: int
    ) -> None:
        self._function = function
        self._timeout_s = timeout_s
        self._most_hanging = most_hanging
        self._hanging = 0

    async def score(self, call: Call) -> float | None:
        """Call the function.

        Raises:
            ScorerFailed: It raised, took too long or gave no number; or too many hang.
        """
        if self._hanging >= self._most_hanging:
            raise ScorerFailed(f"the scorer hangs in {self._hanging} threads")
        done = self._started(call)
        try:
            async with asyncio.timeout(self._timeout_s):
                value = await asyncio.shield(done)
        except TimeoutError as error:
            if done.done():
                raise ScorerFailed("the scorer failed: TimeoutError()") from error
            self._hanging += 1
            done.add_done_callback(self._came_back)
            raise ScorerFailed(f"the scorer took longer than {self._timeout_s:g} s") from error
        except Exception as error:
            raise ScorerFailed(f"the scorer failed: {error!r}") from error
        return as_score(value)

    def _started(self, call: Call) -> asyncio.Future[object]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[object] = loop.create_future()

        def run() -> None:
            tell: Callable[[], None]
            try:
                value = self._function(call)
                tell = lambda: done.set_result(value)  # noqa: E731
            except BaseException as error:
                failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
                tell = lambda: done.set_exception(failure)  # noqa: E731
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(tell)

        threading.Thread(target=run, name=f"scorer {call.id}", daemon=True).start()
        return done

    def _came_back(self, done: asyncio.Future[object]) -> None:
        self._hanging -= 1
        done.exception()  # looked at, so that nobody complains that it was not
