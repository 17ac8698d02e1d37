"""A started sandbox: runs processes through the launcher, cold or forked from a warm parent."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from polar.errors import RuntimeFailed
from polar.runtimes.base import ExecResult, Place, Preload, ProcessSpec
from polar.runtimes.channel import Channel
from polar.runtimes.output import Streams, open_streams, open_tail
from polar.runtimes.warm import WarmParents
from polar.types import Limits

__all__ = ["Identity", "LaunchedSandbox", "resource_limits"]

_MB = 2**20
_LARGEST_FILE_BYTES = 2**30
_OPEN_FILES = 4096
_KILL_S = 10.0
_PUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Identity:
    """As what, and with how much, processes run inside."""

    env: Mapping[str, str]
    """What every process finds in its environment unless its spec says otherwise."""
    limits: Mapping[str, int | None]
    """Name of a resource limit without its prefix -> value."""
    uid: int | None = None
    """User id to become; absent: the sandbox has the right one already."""
    confined: bool = False
    """Whether there are namespaces to enter and privileges to give up."""


class LaunchedSandbox:
    """A sandbox whose first process is a launcher. One process spec runs at a time.

    Args:
        place: Where things are, seen from inside.
        init: Socket to the first process.
        init_pid: Its process id as seen from here.
        identity: As what processes run.
        warm: Warm parents; absent: every process is started anew.
    """

    def __init__(
        self,
        place: Place,
        init: Channel,
        *,
        init_pid: int,
        identity: Identity,
        warm: WarmParents | None,
    ) -> None:
        self._place = place
        self._init = init
        self._init_pid = init_pid
        self._identity = identity
        self._warm = warm
        self._turn = asyncio.Lock()

    @property
    def place(self) -> Place:
        """Where things are, seen from inside."""
        return self._place

    async def put_files(self, files: Mapping[str, str]) -> None:
        """Write files below the sandbox's home, as the sandbox's own user.

        Raises:
            RuntimeFailed: A path leads out of the home, or the home is full.
        """
        for name in files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise RuntimeFailed("a config file must lie in the sandbox's home", where=name)
        async with asyncio.timeout(_PUT_S):
            _, reply = await self._init.request({"do": "put", "files": dict(files)})
            error = (await reply)["error"]
        if error is not None:
            raise RuntimeFailed(f"cannot write config files: {error}", where=self._place.home)

    async def run(self, spec: ProcessSpec, *, timeout_s: float) -> ExecResult:
        """Run a process to its end; nothing that it started outlives it.

        Raises:
            RuntimeFailed: The sandbox broke.
        """
        async with self._turn:
            if spec.preload is not None and self._warm is not None:
                parent = await self._warm.get(spec.preload)
                if parent is not None:
                    result = await self._run_forked(spec, spec.preload, parent, timeout_s)
                    if result is not None:
                        return result
            return await self._run_plain(spec, timeout_s)

    async def _run_plain(self, spec: ProcessSpec, timeout_s: float) -> ExecResult:
        async with open_streams(spec.stdin) as streams:
            began = time.monotonic()
            message = {"do": "spawn", **self._process(spec)}
            _, reply = await self._init.request(message, streams.fds)
            streams.release()
            timed_out = not await self._wait(reply, timeout_s, parent=None, number=0)
            return await _result(reply, streams, timed_out=timed_out, began=began)

    async def _run_forked(
        self, spec: ProcessSpec, preload: Preload, parent: Channel, timeout_s: float
    ) -> ExecResult | None:
        """Fork the process from the warm parent; nothing when the machine does not let us."""
        identity = self._identity
        message = {
            "do": "fork",
            "entry": preload.entry,
            "uid": identity.uid,
            "confine": identity.confined,
            **self._process(spec),
        }
        async with open_streams(spec.stdin) as streams:
            began = time.monotonic()
            pipe, trouble, write = await open_tail()
            try:
                with write:
                    number, reply = await self._fork(
                        parent, message, (*streams.fds, write.fileno())
                    )
                streams.release()
                timed_out = not await self._wait(reply, timeout_s, parent=parent, number=number)
                await self._sweep()
                if reason := await trouble.text():
                    if self._warm is not None:
                        self._warm.refuse(preload, reason)
                    return None
                return await _result(reply, streams, timed_out=timed_out, began=began)
            finally:
                pipe.close()

    async def _fork(
        self, parent: Channel, message: Mapping[str, Any], fds: tuple[int, ...]
    ) -> tuple[int, asyncio.Future[Mapping[str, Any]]]:
        if not self._identity.confined:
            return await parent.request(message, fds)
        pidfd = os.pidfd_open(self._init_pid)
        try:
            return await parent.request(message, (*fds, pidfd))
        finally:
            os.close(pidfd)

    async def _wait(
        self,
        reply: asyncio.Future[Mapping[str, Any]],
        timeout_s: float,
        *,
        parent: Channel | None,
        number: int,
    ) -> bool:
        """Wait for the end of a process; kill it on time-out (false) and on cancellation."""
        try:
            done, _ = await asyncio.wait((reply,), timeout=timeout_s)
        except asyncio.CancelledError:
            await self._kill(reply, parent, number)
            raise
        if not done:
            await self._kill(reply, parent, number)
        return bool(done)

    async def _kill(
        self, reply: asyncio.Future[Mapping[str, Any]], parent: Channel | None, number: int
    ) -> None:
        await self._sweep()
        if parent is not None:
            await parent.tell({"do": "kill", "id": number})
        done, _ = await asyncio.wait((reply,), timeout=_KILL_S)
        if not done:
            raise RuntimeFailed(f"a process could not be killed within {_KILL_S:g} s")

    async def _sweep(self) -> None:
        _, reply = await self._init.request({"do": "sweep"})
        async with asyncio.timeout(_KILL_S):
            await reply

    def _process(self, spec: ProcessSpec) -> dict[str, Any]:
        return {
            "argv": spec.argv,
            "env": {**self._identity.env, **spec.env},
            "cwd": self._place.work_dir,
            "limits": self._identity.limits,
        }


def resource_limits(limits: Limits, *, count_processes: bool) -> Mapping[str, int | None]:
    """Translate a session's limits into resource limits of each of its processes.

    Memory is RLIMIT_DATA, for address space is reserved freely by some programs (Node).

    Args:
        limits: The session's limits.
        count_processes: Whether the sandbox's user has no processes but the sandbox's.
    """
    return {
        "CPU": limits.cpu_s,
        "DATA": limits.memory_mb * _MB,
        "NPROC": limits.processes if count_processes else None,
        "FSIZE": _LARGEST_FILE_BYTES,
        "NOFILE": _OPEN_FILES,
        "CORE": 0,
    }


async def _result(
    reply: asyncio.Future[Mapping[str, Any]], streams: Streams, *, timed_out: bool, began: float
) -> ExecResult:
    code = int(reply.result()["exit"])
    wall_s = time.monotonic() - began
    return ExecResult(
        exit_code=code,
        stdout=await streams.out.text(),
        stderr=await streams.err.text(),
        timed_out=timed_out,
        wall_s=wall_s,
    )
