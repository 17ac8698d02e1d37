"""What a server that is reached over HTTP is, whatever it speaks."""

from __future__ import annotations

from polar.engines.servers.connection import Connection, ServerKind
from polar.engines.settings import ServerSettings

__all__ = ["HttpServer"]


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
