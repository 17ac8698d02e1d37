"""Runs a program at the user's own terminal, and waits for it through Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from polar.errors import RuntimeFailed
from polar.runtimes.base import ProcessSpec
from polar.runtimes.output import open_input

__all__ = ["ForegroundResult", "own_environment", "run_in_foreground"]

_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class ForegroundResult:
    """How a program at the terminal ended."""

    exit_code: int
    """As the shell gives it: 128 + signal for a killed process."""
    interrupted_by: signal.Signals | None
    """What asked for the end before it came; absent: it ended by itself."""


def own_environment(variables: Mapping[str, str], hides: tuple[str, ...]) -> dict[str, str]:
    """Give the user's environment without what would lead the program past the gateway.

    Args:
        variables: The user's environment.
        hides: Beginnings of names to leave out.
    """
    kept = {name: value for name, value in variables.items() if not name.startswith(hides)}
    for name in ("NO_PROXY", "no_proxy"):
        kept[name] = ",".join(filter(None, (kept.get(name), "127.0.0.1,localhost")))
    return kept


async def run_in_foreground(
    spec: ProcessSpec, *, folder: Path, env: Mapping[str, str], interactive: bool
) -> ForegroundResult:
    """Run a program with the terminal's own streams, in the user's own process group.

    Ctrl-C goes from the terminal to the program too. A program with a screen of its own makes of
    it what it wants; any other has five seconds to end, and is then ended. A termination request
    or a lost terminal ends either.

    Args:
        spec: What to run; its `env` goes over `env`, and without `stdin` it reads the terminal.
        folder: Where it runs.
        env: Its environment.
        interactive: Whether it has a screen of its own.

    Raises:
        RuntimeFailed: It cannot be started.
    """
    # OpenCode works where this variable says, not where it is started.
    here = {"PWD": str(folder)}
    async with _started(spec, folder, {**env, **here, **spec.env}) as process:
        stops = _Stops(process, asyncio.get_running_loop(), patient=interactive)
        with _terminal_as_it_was(), stops.listening():
            code = await process.wait()
    return ForegroundResult(128 - code if code < 0 else code, stops.asked)


class _Stops:
    """Ends a program when it is asked to: gently, then not."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        loop: asyncio.AbstractEventLoop,
        *,
        patient: bool,
    ) -> None:
        self.asked: signal.Signals | None = None
        self._process = process
        self._loop = loop
        self._patient = patient
        self._timers: list[asyncio.TimerHandle] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals that end a program, until the context is left."""
        handlers = {
            signal.SIGINT: self._interrupt,
            signal.SIGTERM: self._end,
            signal.SIGHUP: self._end,
        }
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            self._loop.add_signal_handler(number, handler, number)
        try:
            yield
        finally:
            for number, old in before.items():
                self._loop.remove_signal_handler(number)
                signal.signal(number, old)
            for timer in self._timers:
                timer.cancel()

    def _interrupt(self, number: signal.Signals) -> None:
        if self._patient:
            return
        delay_s = _GRACE_S if self.asked is None else 0
        self.asked = number
        self._timers.append(self._loop.call_later(delay_s, self._end, number))

    def _end(self, number: signal.Signals) -> None:
        self.asked = number
        self._send(signal.SIGTERM)
        self._timers.append(self._loop.call_later(_GRACE_S, self._send, signal.SIGKILL))

    def _send(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)


@asynccontextmanager
async def _started(
    spec: ProcessSpec, folder: Path, env: Mapping[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a program; leaving the context ends it."""
    stdin = None if spec.stdin is None else await asyncio.to_thread(open_input, spec.stdin)
    try:
        process = await asyncio.create_subprocess_exec(*spec.argv, stdin=stdin, cwd=folder, env=env)
    except OSError as error:
        raise RuntimeFailed(
            f"the program does not start: {error}",
            where=spec.argv[0],
            fix="Install it again, or set `harness.settings.executable`.",
        ) from error
    finally:
        if stdin is not None:
            stdin.close()
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextmanager
def _terminal_as_it_was() -> Iterator[None]:
    """Undo what a killed program did to the terminal."""
    descriptor = _terminal()
    before = None if descriptor is None else termios.tcgetattr(descriptor)
    try:
        yield
    finally:
        if descriptor is not None and before is not None:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _terminal() -> int | None:
    """Find the terminal, where this process may change it: a background job would be stopped."""
    try:
        descriptor = sys.stdin.fileno()
        mine = os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp()
    except (OSError, ValueError):
        return None
    return descriptor if mine else None
