"""The event loop that commands run in, how a signal ends it, and the garbage collector's rounds."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from polar.cli.console import errors

__all__ = ["keep_loaded", "run_async", "to_its_end"]

T = TypeVar("T")


_COLLECTOR_THRESHOLDS = (20_000, 10, 10)
"""Python's own are (700, 10, 10): one reply of an engine makes as many objects, which reference
counts free at once, and the collector was an eighth of what the gateway takes for a call."""


def keep_loaded() -> None:
    """Have the garbage collector pass over what is loaded by now, and look about less often.

    Nothing of it is garbage, but every full collection would walk through all of it: modules,
    tokenizer and model are some hundred thousand objects, and the gateway stands still meanwhile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop where there is one.

    A call passes the loop some ten times on its way through the gateway; uvloop makes what the
    gateway adds to it about a third shorter.

    Raises:
        KeyboardInterrupt: A signal has asked for the end; sandboxes and files are taken down.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        stop = _Stop(runner.get_loop())
        with stop.listening():
            try:
                result = runner.run(stop.watched(main))
            except asyncio.CancelledError:
                if stop.asked:
                    raise KeyboardInterrupt from None
                raise
            finally:
                runner.close()
            if stop.asked_too_late:
                raise KeyboardInterrupt
            return result


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Do what a Ctrl-C too many must not break off: it takes moments, and keeps what was done."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
    return task.result()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class _Stop:
    """Cancels the command once, however often it is asked to end.

    Every wait of the way down has a deadline. A second Ctrl-C that broke it off would leave
    sandboxes, work folders and the state of the last step behind.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = False
        self.asked_too_late = False
        """The work was done by then, and nothing of it is broken off."""
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None

    async def watched(self, main: Coroutine[Any, Any, T]) -> T:
        """Run what a signal cancels."""
        self._task = asyncio.current_task()
        if self.asked:
            main.close()
            raise asyncio.CancelledError
        return await main

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the interrupts of this process, until the context is left."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, lambda *_: self._interrupt())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self) -> None:
        # Nothing is raised here: uvloop would print what a handler of a signal raises, and go on.
        if self.asked or self.asked_too_late:
            self._say("still ending: sandboxes are killed and what is done is saved")
        elif self._task is None:
            self.asked = True
        elif self._task.done():
            self.asked_too_late = True
        else:
            self.asked = True
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _say(self, text: str) -> None:
        """Tell the user, but not in the handler: the console may be in the middle of a line."""
        with suppress(RuntimeError):  # the loop is closed, and all has ended
            self._loop.call_soon_threadsafe(errors.print, text)
