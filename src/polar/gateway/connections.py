"""Cuts the connections of clients that are slow to send a request or to read its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["ConnectionLimits", "Cut", "LimitedProtocol"]

Cut = Literal["slow_head", "large_head", "slow_body", "slow_reader"]
"""Why a connection was cut."""


def _not_counted(cut: Cut) -> None:
    """Count nothing."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a client may take of time and room, on every connection."""

    head_timeout_s: float
    """From the connection, or the first byte of a later request, to the end of the headers."""
    body_timeout_s: float
    """For the rest of a body whose request was answered before it was complete."""
    read_timeout_s: float
    """For the client to take what waits for it."""
    max_head_bytes: int
    """Method, path and headers together."""
    on_cut: Callable[[Cut], None] = _not_counted
    """Told of every connection that is cut."""


class LimitedProtocol(HttpToolsProtocol):
    """The server's side of one connection, with deadlines in both directions.

    The server has none of its own, so that a client that falls silent within its headers, or
    stops reading, would hold its connection for as long as it likes. Cutting the connection is
    what the application sees as a client that has left.
    """

    def __init__(self, limits: ConnectionLimits, **connection: Any) -> None:
        super().__init__(**connection)
        self._limits = limits
        self._head_bytes: int | None = None
        """Received of a head that is not complete; absent between heads."""
        self._sending: asyncio.TimerHandle | None = None
        """Runs while the client owes a part of a request."""
        self._reading: asyncio.TimerHandle | None = None
        """Runs while the client has not taken what waits for it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Expect a request."""
        whole = _WholeStarts(cast(asyncio.Transport, transport), self.loop)
        super().connection_made(cast(asyncio.Transport, whole))
        self._expect("slow_head", self._limits.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        self._expect_nothing()
        self._stop_reading_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, of a head no more than is allowed."""
        super().data_received(data)
        if self._head_bytes is None:
            return
        self._head_bytes += len(data)
        if self._head_bytes > self._limits.max_head_bytes:
            self._cut("large_head")

    def on_message_begin(self) -> None:
        """Expect the rest of the head in time."""
        super().on_message_begin()
        self._head_bytes = 0
        if self._sending is None:
            self._expect("slow_head", self._limits.head_timeout_s)

    def on_headers_complete(self) -> None:
        """Leave the body to the application, which answers when it is slow."""
        self._head_bytes = None
        self._expect_nothing()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect nothing until the next request begins."""
        self._expect_nothing()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Give the client its time to take the end of an answer, and to end its request."""
        super().on_response_complete()
        if self.cycle.more_body:
            self._expect("slow_body", self._limits.body_timeout_s)
        if self.transport.get_write_buffer_size():
            self._start_reading_clock()

    def pause_writing(self) -> None:
        """Give the client its time to read."""
        super().pause_writing()
        self._start_reading_clock()

    def resume_writing(self) -> None:
        """Note that the client has read."""
        super().resume_writing()
        self._stop_reading_clock()

    def _expect(self, cut: Cut, timeout_s: float) -> None:
        self._expect_nothing()
        self._sending = self.loop.call_later(timeout_s, self._not_sent, cut, timeout_s)

    def _expect_nothing(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _not_sent(self, cut: Cut, timeout_s: float) -> None:
        if self.flow.read_paused:
            # What the client owes may have arrived: an earlier request is still being answered.
            self._expect(cut, timeout_s)
        else:
            self._cut(cut)

    def _start_reading_clock(self) -> None:
        self._stop_reading_clock()
        self._reading = self.loop.call_later(self._limits.read_timeout_s, self._not_read)

    def _stop_reading_clock(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _not_read(self) -> None:
        self._reading = None
        if self.transport.get_write_buffer_size():
            self._cut("slow_reader")

    def _cut(self, cut: Cut) -> None:
        """Drop the connection with what waits in it: closing it would wait for the client."""
        self._limits.on_cut(cut)
        self.transport.abort()


class _WholeStarts:
    """A transport that sends the head of an answer together with what follows it at once.

    The server writes the head by itself, which costs a system call here and often one more at
    the client, for every answer.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, or keep a head until there is more or the present step is over."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif data.startswith(b"HTTP/"):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close when all is written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._head = b""
