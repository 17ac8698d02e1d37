"""Runs an ASGI application on a socket, inside the event loop that is already running."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import uvicorn

from polar.errors import GatewayError
from polar.gateway.connections import ConnectionLimits, LimitedProtocol

__all__ = ["Address", "listen", "serve_app"]

_SHUTDOWN_S = 5
_IDLE_CONNECTION_S = 600
"""A harness thinks and runs tools between calls; its client must not meet a closing connection."""


_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Seconds of silence before the other side is asked whether it is there, seconds between questions,
and questions without an answer after which it is not; where the system lets them be set."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the gateway listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Base address, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class _Server(uvicorn.Server):
    """A server that leaves signals to the program and says when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()


@asynccontextmanager
async def serve_app(
    app: Any, *, at: tuple[str, int] | socket.socket, limits: ConnectionLimits
) -> AsyncIterator[Address]:
    """Serve until the context is left.

    Args:
        app: An ASGI application.
        at: Address and port to listen on, where port 0 chooses a free one; or what listens already
            and is closed at the end.
        limits: What a client may take of time and room.

    Raises:
        GatewayError: The address cannot be used.
    """
    listener = at if isinstance(at, socket.socket) else listen(*at)
    config = uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], partial(LimitedProtocol, limits)),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE_CONNECTION_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="gateway")
    try:
        await server.ready.wait()
        yield Address(*listener.getsockname()[:2])
    finally:
        server.should_exit = True
        await serving
        listener.close()


def _notice_vanished_peers(listener: socket.socket) -> None:
    """Have the system end connections whose other side is gone without a word.

    Connections inherit it. Nothing tells such a one from a harness that thinks, and it would
    keep its call and its descriptor for hours.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def listen(host: str, port: int) -> socket.socket:
    """Listen for clients.

    Raises:
        GatewayError: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, so that asyncio sets TCP_NODELAY: without it small answers wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_vanished_peers(listener)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        raise GatewayError(
            f"the gateway cannot listen there: {error}",
            where=f"{host}:{port}",
            fix="Choose another port, or 0 for any free one.",
        ) from error
    return listener
