"""Scores with a command: the call as JSON on its input, a number on its output."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import orjson

from polar.errors import ScorerFailed
from polar.gateway.scorers.base import as_score
from polar.types import Call

__all__ = ["CommandScorer", "call_as_json"]

_MOST_OUTPUT_BYTES = 65536
_REAP_S = 5.0


class CommandScorer:
    """Runs a command for each call, in a process group of its own that never outlives it.

    Args:
        command: Program and arguments.
        timeout_s: Longest time for one call; then the whole group is killed.
    """

    def __init__(self, command: Sequence[str], *, timeout_s: float) -> None:
        self._command = tuple(command)
        self._timeout_s = timeout_s

    async def score(self, call: Call) -> float | None:
        """Run the command.

        Raises:
            ScorerFailed: It cannot be started, took too long, failed or printed no number.
        """
        try:
            ended = await self._run(call_as_json(call))
        except TimeoutError as error:
            raise ScorerFailed(f"the scorer took longer than {self._timeout_s:g} s") from error
        except OSError as error:
            raise ScorerFailed(f"the scorer cannot be started: {error}") from error
        if ended.exit_code != 0:
            said = ended.stderr.decode(errors="replace").strip()[-300:]
            raise ScorerFailed(f"the scorer failed (exit {ended.exit_code}): {said}")
        return as_score(_printed(ended.stdout))

    async def _run(self, given: bytes) -> _Ended:
        transport, process = await asyncio.get_running_loop().subprocess_exec(
            _Process, *self._command, start_new_session=True
        )
        stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        try:
            stdin.write(given)
            stdin.write_eof()
            async with asyncio.timeout(self._timeout_s):
                await process.ended.wait()
        finally:
            _kill_group(transport.get_pid())
            with suppress(TimeoutError):
                async with asyncio.timeout(_REAP_S):
                    await process.exited.wait()
            transport.close()
        return _Ended(
            transport.get_returncode(), bytes(process.output[1]), bytes(process.output[2])
        )


def call_as_json(call: Call) -> bytes:
    """Write what a command is told of a call."""
    told = {
        "version": 1,
        "session_id": call.session_id,
        "attempt": call.attempt,
        "call_id": call.id,
        "parent_id": call.parent_id,
        "index": call.index,
        "kind": call.kind,
        "messages": call.messages,
        "tools": call.tools,
        "reply": call.reply,
        "finish_reason": call.finish_reason,
        "prompt_tokens": len(call.prompt_ids),
        "sampled_tokens": len(call.sampled_ids),
    }
    return orjson.dumps(told, default=dict)


@dataclass(frozen=True, slots=True)
class _Ended:
    exit_code: int | None
    stdout: bytes
    stderr: bytes


class _Process(asyncio.SubprocessProtocol):
    """Takes the output, of each stream as much as is kept, and notes the end."""

    def __init__(self) -> None:
        self.output: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self.exited = asyncio.Event()
        self.ended = asyncio.Event()
        """Exited, and its output is complete."""
        self._pid = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Learn the process's id."""
        self._pid = cast(asyncio.SubprocessTransport, transport).get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep the beginning."""
        kept = self.output[fd]
        kept += data[: _MOST_OUTPUT_BYTES - len(kept)]

    def process_exited(self) -> None:
        """Take whatever it left behind with it: that would keep the output open."""
        _kill_group(self._pid)
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the output is complete."""
        self.ended.set()


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _printed(stdout: bytes) -> object:
    """Read a number, `null`, or an object whose `score` is one of these."""
    try:
        value = orjson.loads(stdout)
    except orjson.JSONDecodeError as error:
        said = stdout.decode(errors="replace").strip()[:100]
        raise ScorerFailed(f"the scorer printed what is not JSON: {said!r}") from error
    if isinstance(value, dict):
        if "score" not in value:
            raise ScorerFailed("the scorer printed an object without `score`")
        return value["score"]
    return value
