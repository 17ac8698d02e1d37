"""What a server that is reached over HTTP is, whatever it speaks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from polar.engines.servers.connection import Connection, ServerKind
from polar.engines.settings import ServerSettings
from polar.errors import EngineError

__all__ = ["FixedServer", "HttpServer"]


class HttpServer:
    """One server. Closing a stream closes its connection, which tells the server to stop.

    Args:
        address: Of the server.
        settings: Timeouts and key.
        kind: What it is, for errors.
    """

    def __init__(self, address: str, settings: ServerSettings, kind: ServerKind) -> None:
        self.address = address
        self._connection = Connection(address, settings, kind)

    async def check(self) -> None:
        """Ask whether the server can sample."""
        await self._connection.check("/health")

    async def drop_streams(self) -> None:
        """Hang up on all running requests."""
        await self._connection.drop_streams()

    async def aclose(self) -> None:
        """Close all connections; open streams end with `EngineError`."""
        await self._connection.aclose()


class FixedServer(HttpServer):
    """A server that keeps the weights it was started with, and cannot be told to pause.

    A pause is kept on this side: nothing more is asked of the server, or taken from it.
    """

    weight_version = 0
    weights = None

    def __init__(self, address: str, settings: ServerSettings, kind: ServerKind) -> None:
        super().__init__(address, settings, kind)
        self._kind = kind
        self._running = asyncio.Event()
        self._running.set()

    async def pause(self) -> None:
        """Ask for nothing and take nothing more."""
        self._running.clear()

    async def resume(self) -> None:
        """Go on."""
        self._running.set()

    async def load_weights(self, version: int, path: Path | None) -> None:
        """Refuse.

        Raises:
            EngineError: Always.
        """
        raise EngineError(f"{self._kind.name} cannot take new weights", where=self.address)

    async def aclose(self) -> None:
        """Close all connections; open streams end with `EngineError`."""
        await super().aclose()
        self._running.set()

    async def wait_running(self) -> None:
        """Wait for the end of a pause.

        Raises:
            EngineError: The engine was closed.
        """
        await self._running.wait()
        if self._connection.closed:
            raise EngineError("the engine was closed")
