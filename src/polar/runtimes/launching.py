"""Starts launchers and ends them together with everything that they started."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from polar.errors import RuntimeFailed
from polar.runtimes.channel import Channel, Greeting
from polar.runtimes.launcher import BOOT, roles
from polar.runtimes.output import TailReader, open_tail

__all__ = ["PACKAGE", "Command", "Launched", "boot", "launched"]

PACKAGE = Path(roles.__file__).parent
"""Folder of the launcher's package."""

_END_S = 5.0


@dataclass(frozen=True, slots=True)
class Command:
    """How to start one launcher process."""

    role: Literal["init", "warm"]
    python: tuple[str, ...]
    """The interpreter with its flags and program (`boot`)."""
    env: Mapping[str, str]
    """The whole environment."""
    cwd: Path
    wrapper: tuple[str, ...] = ()
    """A command line that runs the launcher, given as its last arguments."""
    fds: tuple[int, ...] = ()
    """Descriptors that the wrapper needs."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A launcher that is ready."""

    channel: Channel
    greeting: Greeting


def boot(folder: Path | str = PACKAGE.parent) -> tuple[str, str]:
    """Name the interpreter's arguments that start the launcher.

    Args:
        folder: Where the folder `launcher` is, as seen by the interpreter.
    """
    return "-c", BOOT.format(folder=str(folder))


@asynccontextmanager
async def launched(
    command: Command, setup: Mapping[str, Any], *, ready_s: float
) -> AsyncIterator[Launched]:
    """Start a launcher; leaving the context kills it and whatever it started.

    Args:
        command: The process to start.
        setup: The first message to it.
        ready_s: Longest wait until it is ready.

    Raises:
        RuntimeFailed: It did not start; carries what it wrote to stderr.
    """
    ours, theirs = socket.socketpair()
    transport, said, stderr = await open_tail()
    channel = Channel(ours)
    process = None
    try:
        with theirs, stderr:
            process = await _start(command, theirs, stderr.fileno())
        yield await _ready(channel, setup, said, ready_s)
    finally:
        channel.close()
        if process is not None:
            await _end(process)
        transport.close()


async def _start(
    command: Command, theirs: socket.socket, stderr: int
) -> asyncio.subprocess.Process:
    arguments: Sequence[str] = (
        *command.wrapper,
        *command.python,
        command.role,
        str(theirs.fileno()),
    )
    try:
        return await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=stderr,
            env=dict(command.env),
            cwd=command.cwd,
            pass_fds=(theirs.fileno(), *command.fds),
            start_new_session=True,
        )
    except OSError as error:
        raise RuntimeFailed(
            f"cannot start a sandbox: {error.strerror}",
            where=arguments[0],
            fix="Run `polar doctor`.",
        ) from error


async def _ready(
    channel: Channel, setup: Mapping[str, Any], said: TailReader, ready_s: float
) -> Launched:
    try:
        await channel.greet(setup)
        async with asyncio.timeout(ready_s):
            greeting = await channel.ready
    except (RuntimeFailed, TimeoutError) as error:
        late = isinstance(error, TimeoutError)
        reason = f"not ready after {ready_s:g} s" if late else (await said.text()).strip()
        raise RuntimeFailed(
            f"a sandbox did not start: {reason or 'no reason given'}", fix="Run `polar doctor`."
        ) from error
    return Launched(channel, greeting)


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
