"""Messages between a gateway's owner and one of its workers, over a private socket."""

from __future__ import annotations

import asyncio
import logging
import pickle
import struct
from collections.abc import Awaitable, Callable
from socket import socket
from typing import Any, cast

from polar.errors import GatewayError, PolarError

__all__ = ["Link"]

_log = logging.getLogger("polar.gateway")
_HEAD = struct.Struct("<Iq")
"""Length of the message; number of the question: negative for its answer, 0 where none is
wanted."""


class Link(asyncio.Protocol):
    """One end. Both ask, answer and tell; what is told or asked is begun in the order it came.

    Messages are pickled: both ends are processes of the same run, and nobody else has the socket.

    Args:
        handle: Answers a message of the other end; what it raises is raised there.
        on_lost: Called when the other end is gone.
    """

    def __init__(
        self, handle: Callable[[object], Awaitable[object]], on_lost: Callable[[], None]
    ) -> None:
        self._handle = handle
        self._on_lost = on_lost
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._handling: set[asyncio.Task[None]] = set()
        self._gone = False

    async def connect(self, end: socket) -> None:
        """Take one end of a pair of sockets."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=end)

    async def ask(self, message: object) -> Any:
        """Send a message and wait for its answer.

        Raises:
            GatewayError: The other end is gone, or the message cannot be sent.
            PolarError: What the other end raised.
        """
        self._count += 1
        number = self._count
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(number, message)
            return await answer
        finally:
            del self._asked[number]

    def tell(self, message: object) -> None:
        """Send a message that wants no answer; nothing happens if the other end is gone."""
        if not self._gone:
            self._send(0, message)

    def close(self) -> None:
        """Hang up, whatever the other end has yet to read."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Take whole messages out of what has come."""
        received = self._received
        received += data
        start = 0
        while len(received) - start >= _HEAD.size:
            length, number = _HEAD.unpack_from(received, start)
            end = start + _HEAD.size + length
            if len(received) < end:
                break
            self._take(number, bytes(received[start + _HEAD.size : end]))
            start = end
        del received[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all that wait for an answer."""
        self._gone = True
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(_gone())
        self._on_lost()

    def _take(self, number: int, payload: bytes) -> None:
        """Settle an answer, or begin to answer; what cannot be read costs its asker alone."""
        try:
            message = pickle.loads(payload)
        except Exception as error:  # reading runs the code of whatever was sent
            self._take_unreadable(number, error)
            return
        if number < 0:
            self._settle(-number, *cast(tuple[bool, Any], message))
            return
        task = asyncio.create_task(self._answer(number, message))
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    def _take_unreadable(self, number: int, error: Exception) -> None:
        told = GatewayError(
            f"what another process of the gateway has sent cannot be read: {error}",
            fix="Make it of classes and functions of modules that every process can import, "
            "or set gateway.workers to 0.",
        )
        if number < 0:
            self._settle(-number, False, told)
        elif number and not self._gone:
            self._send(-number, (False, told))
        else:
            _log.error("%s", told)

    def _settle(self, number: int, well: bool, value: Any) -> None:
        answer = self._asked.get(number)
        if answer is None or answer.done():
            return
        if well:
            answer.set_result(value)
        else:
            answer.set_exception(value)

    async def _answer(self, number: int, message: object) -> None:
        try:
            answer = True, await self._handle(message)
        except PolarError as error:
            answer = False, error
        except Exception as error:
            _log.exception("a message between the processes of the gateway")
            answer = False, GatewayError(f"a process of the gateway failed: {error!r}")
        if number and not self._gone:
            self._send_answer(number, answer)

    def _send_answer(self, number: int, answer: tuple[bool, object]) -> None:
        try:
            self._send(-number, answer)
        except GatewayError as error:  # whoever asked must not wait for ever
            if not self._gone:
                self._send(-number, (False, error))

    def _send(self, number: int, message: object) -> None:
        if self._gone or self._transport is None:
            raise _gone()
        try:
            payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # pickling runs the code of whatever it is given
            raise GatewayError(
                f"this cannot be sent to another process of the gateway: {error}",
                fix="Make it of classes and functions of modules, or set gateway.workers to 0.",
            ) from error
        self._transport.write(_HEAD.pack(len(payload), number) + payload)


def _gone() -> GatewayError:
    return GatewayError("the other process of the gateway has ended")
