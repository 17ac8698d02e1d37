"""Carries connections from a listening socket inside a sandbox to the gateway outside."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

__all__ = ["forward"]

_CHUNK_BYTES = 64 * 1024
_CONNECT_S = 10.0
_RESET = struct.pack("ii", 1, 0)


@asynccontextmanager
async def forward(listener: socket.socket, gateway_url: str) -> AsyncIterator[None]:
    """Accept connections and carry their bytes to the gateway and back while the context lasts.

    The socket was made in the sandbox's network namespace and stays there: accepting on it from
    here needs no process inside. A connection that breaks on one side is reset on the other, for
    a cut stream must never look like one that ended.

    Args:
        listener: Listening socket, owned from now on.
        gateway_url: `http://HOST:PORT`.
    """
    address = urlsplit(gateway_url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served outside of a task")
        connections.add(task)
        try:
            await _carry(reader, writer, host, port)
        except asyncio.CancelledError:
            _reset(writer)
        finally:
            connections.discard(task)

    server = await asyncio.start_server(connected, sock=listener)
    try:
        yield
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
) -> None:
    try:
        async with asyncio.timeout(_CONNECT_S):
            onward_reader, onward_writer = await asyncio.open_connection(host, port)
    except OSError:
        _reset(writer)
        return
    ended = False
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(reader, onward_writer))
            both.create_task(_pump(onward_reader, writer))
        ended = True
    except* OSError:
        pass  # one side broke: the other is reset below
    finally:
        for side in (writer, onward_writer):
            side.close() if ended else _reset(side)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    fd = writer.get_extra_info("socket").fileno()
    if fd >= 0:
        with socket.socket(fileno=os.dup(fd)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
