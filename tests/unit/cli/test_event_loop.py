"""The event loop of commands: what a signal does to it, and the garbage collector's settings."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import signal
import sys
import threading

import pytest

from polar.cli.console import errors
from polar.cli.loop import keep_loaded, run_async


@pytest.fixture(autouse=True)
def _own_settings():
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


class _Cycle:
    def __init__(self) -> None:
        self.me = self


def test_what_is_loaded_is_passed_over_and_garbage_of_later_is_still_found() -> None:
    loaded = [[] for _ in range(100)]
    keep_loaded()
    assert gc.get_freeze_count() > len(loaded)
    assert not any(each is loaded for each in gc.get_objects())
    for _ in range(10):
        _Cycle()
    assert gc.collect() >= 10


def test_a_signal_that_comes_while_the_loop_is_taken_down_ends_the_command(capfd) -> None:
    opened = []
    taken_down = []

    async def work():
        async def source():
            try:
                yield
            finally:  # reached when the loop closes what was left open
                asked = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))
                asked.start()
                await asyncio.sleep(0.1)
                taken_down.append(True)

        opened.append(source())
        await anext(opened[0])
        return "done"

    with pytest.raises(KeyboardInterrupt):
        run_async(work())
    assert taken_down
    assert "Traceback" not in capfd.readouterr().err


def test_a_signal_that_comes_again_is_answered_and_breaks_nothing_off(capfd) -> None:
    saved = []

    async def work():
        try:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.05)
            saved.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_async(work())
    assert saved
    assert "still ending" in capfd.readouterr().err


def test_a_signal_is_answered_but_not_in_the_middle_of_a_line(monkeypatch) -> None:
    class Interrupted(io.StringIO):
        within = False

        def write(self, text: str) -> int:
            assert not self.within
            self.within = True
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            self.within = False
            return super().write(text)

    stream = Interrupted()
    monkeypatch.setattr(sys, "stderr", stream)

    async def work():
        errors.print("one line")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)

    with pytest.raises(KeyboardInterrupt):
        run_async(work())
    first, *others = stream.getvalue().splitlines()
    assert first == "one line"
    assert "still ending" in others[0]
