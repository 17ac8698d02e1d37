"""The host's end of the socket to a launcher: requests with file descriptors, replies by number."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polar.errors import RuntimeFailed
from polar.runtimes.launcher.wire import LENGTH, MOST_FDS

__all__ = ["Channel", "Greeting"]

_LARGEST_REPLY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first message of a launcher."""

    message: Mapping[str, Any]
    fds: list[int]
    """Descriptors that came with it, owned by the receiver."""
    pid: int
    """The launcher's process id as seen from here."""


class Channel:
    """A connection to one launcher process.

    What arrives is not trusted: the other end shares a user id with the agent's processes.

    Args:
        sock: Connected Unix stream socket, owned from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._sending = asyncio.Lock()
        self._received = bytearray()
        self._lost = False
        self._fds: list[int] = []
        self._pid = 0
        self.ready: asyncio.Future[Greeting] = self._loop.create_future()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._loop.add_reader(sock, self._readable)

    @property
    def lost(self) -> bool:
        """Whether the launcher is gone."""
        return self._lost

    async def greet(self, setup: Mapping[str, Any]) -> None:
        """Send the launcher's settings, the first message."""
        await self._send(setup, ())

    async def request(
        self, message: Mapping[str, Any], fds: Sequence[int] = ()
    ) -> tuple[int, asyncio.Future[Mapping[str, Any]]]:
        """Send a request; return its number and the reply to come.

        Raises:
            RuntimeFailed: The launcher is gone.
        """
        number = next(self._numbers)
        reply: asyncio.Future[Mapping[str, Any]] = self._loop.create_future()
        self._waiting[number] = reply
        try:
            await self._send({"id": number, **message}, fds)
        except BaseException:
            self._waiting.pop(number, None)
            raise
        return number, reply

    async def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message that has no reply."""
        await self._send(message, ())

    def close(self) -> None:
        """Hang up: the launcher kills everything that it started and ends."""
        self._lose()
        self._sock.close()

    async def _send(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        body = json.dumps(message).encode()
        async with self._sending:
            if self._lost:
                raise _gone()
            try:
                await self._send_head(LENGTH.pack(len(body)), fds)
                await self._loop.sock_sendall(self._sock, body)
            except (ConnectionError, OSError) as error:
                raise _gone() from error

    async def _send_head(self, head: bytes, fds: Sequence[int]) -> None:
        while True:
            try:
                socket.send_fds(self._sock, [head], fds)
            except BlockingIOError:
                await self._writable()
            else:
                return

    async def _writable(self) -> None:
        writable = self._loop.create_future()
        self._loop.add_writer(self._sock, _resolve(writable))
        try:
            await writable
        finally:
            self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(
                65536, socket.CMSG_SPACE(4 * MOST_FDS) + socket.CMSG_SPACE(12)
            )
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._lose()
            return
        self._received += data
        self._unpack(ancillary)
        for message in self._messages():
            self._dispatch(message)

    def _messages(self) -> list[Mapping[str, Any]]:
        messages: list[Mapping[str, Any]] = []
        while len(self._received) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._received)
            if size > _LARGEST_REPLY_BYTES:
                self._lose()
                break
            end = LENGTH.size + size
            if len(self._received) < end:
                break
            messages.append(json.loads(self._received[LENGTH.size : end]))
            del self._received[:end]
        return messages

    def _unpack(self, ancillary: Sequence[tuple[int, int, bytes]]) -> None:
        for _, kind, data in ancillary:
            if kind == socket.SCM_RIGHTS:
                self._fds += struct.unpack(f"{len(data) // 4}i", data)
            elif kind == socket.SCM_CREDENTIALS:
                self._pid = struct.unpack("iII", data)[0]

    def _dispatch(self, message: Mapping[str, Any]) -> None:
        if not self.ready.done():
            self.ready.set_result(Greeting(message, self._fds, self._pid))
            return
        reply = self._waiting.pop(message["id"], None)
        if reply is not None and not reply.done():
            reply.set_result(message)

    def _lose(self) -> None:
        if self._lost:
            return
        self._lost = True
        self._loop.remove_reader(self._sock)
        waiting = [*self._waiting.values()]
        self._waiting.clear()
        if not self.ready.done():
            self.ready.set_exception(_gone())
            self.ready.exception()  # retrieved: nobody may be waiting for it
        for reply in waiting:
            if not reply.done():
                reply.set_exception(_gone())
                reply.exception()


def _resolve(future: asyncio.Future[None]) -> Callable[[], None]:
    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    return resolve


def _gone() -> RuntimeFailed:
    return RuntimeFailed("the sandbox's first process is gone")
