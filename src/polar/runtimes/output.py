"""Standard streams of a process: input from memory, the tail of what it writes."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

__all__ = ["PipeEnd", "Streams", "TailReader", "open_input", "open_streams"]

TAIL_BYTES = 64 * 1024
_LAST_BYTES_S = 1.0


class TailReader(asyncio.Protocol):
    """Reads a pipe without end and keeps the last 64 KiB, so that the writer never blocks."""

    def __init__(self) -> None:
        self._tail = bytearray()
        self._ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Keep the end of what was written so far."""
        self._tail += data
        del self._tail[:-TAIL_BYTES]

    def connection_lost(self, exc: Exception | None) -> None:
        """Notice that every writer is gone."""
        self._ended.set()

    async def text(self) -> str:
        """Wait for the end of the stream, which the death of its writers brings, and decode."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_BYTES_S):
                await self._ended.wait()
        return self._tail.decode("utf-8", errors="replace")


class PipeEnd:
    """The end of a pipe, for an event loop to own.

    uvloop closes a pipe's descriptor and then the object that it was given, when the number may
    belong to a file that another thread has just opened. So only what is still the pipe is closed.

    Args:
        descriptor: Of the end; it is closed by whoever is told to first.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pipe = _identity(descriptor)

    def fileno(self) -> int:
        """Give the descriptor."""
        return self._descriptor

    def close(self) -> None:
        """Close the end, unless it is closed."""
        with suppress(OSError):  # the number is nobody's
            if _identity(self._descriptor) == self._pipe:
                os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class Streams:
    """The process's ends of its standard streams, to pass on, and the readers of its output."""

    stdin: BinaryIO
    stdout: BinaryIO
    stderr: BinaryIO
    out: TailReader
    err: TailReader

    @property
    def fds(self) -> tuple[int, int, int]:
        """Descriptors for the process: 0, 1 and 2."""
        return self.stdin.fileno(), self.stdout.fileno(), self.stderr.fileno()

    def release(self) -> None:
        """Close the process's ends here: it has its own copies."""
        for file in (self.stdin, self.stdout, self.stderr):
            file.close()


@asynccontextmanager
async def open_streams(stdin: str | None) -> AsyncIterator[Streams]:
    """Open the streams of one process.

    Args:
        stdin: What the process reads; absent means the null device.
    """
    out_transport, out, stdout = await open_tail()
    err_transport, err, stderr = await open_tail()
    streams = Streams(open_input(stdin), stdout, stderr, out, err)
    try:
        yield streams
    finally:
        streams.release()
        out_transport.close()
        err_transport.close()


async def open_tail() -> tuple[asyncio.BaseTransport, TailReader, BinaryIO]:
    """Open a pipe that is read to its tail: the transport, the reader, the writing end."""
    read, write = os.pipe()
    loop = asyncio.get_running_loop()
    transport, reader = await loop.connect_read_pipe(TailReader, PipeEnd(read))
    return transport, reader, os.fdopen(write, "wb", 0)


def open_input(text: str | None) -> BinaryIO:
    """Open what a process reads: a text, or nothing."""
    if text is None:
        return open(os.devnull, "rb", 0)
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by Streams.release
    file.write(text.encode())
    file.seek(0)
    return file


def _identity(descriptor: int) -> tuple[int, int]:
    """Tell files apart, whatever their numbers."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
