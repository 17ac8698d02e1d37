"""The gateway as its owner sees it, whether it is in the owner's process or in several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from polar.errors import GatewayError, JournalError
from polar.gateway.connections import ConnectionLimits, Cut
from polar.gateway.policy import SessionPolicy, SessionUsage
from polar.types import Session, SessionId

__all__ = ["RUN", "Figures", "ModelBoundary"]

RUN = "run"
"""The holder that pauses for updates of the weights."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was done up to now, in all sessions together."""

    open_sessions: int
    totals: Mapping[str, int]
    """What all sessions used, open and closed."""
    cut_connections: Mapping[Cut, int]
    """Connections that were cut because the client was too slow, by reason."""


class ModelBoundary(Protocol):
    """Lets sessions in to the model, out again, and holds them back meanwhile."""

    @property
    def failure(self) -> JournalError | None:
        """The first failure to put a call on record; a run stops at it."""
        ...

    @property
    def holders(self) -> frozenset[str]:
        """Who holds new calls back; nobody: calls are let through."""
        ...

    def place(self) -> str:
        """Choose where the next session is served.

        Returns:
            A base address without a slash at the end, as seen from this process.
        """
        ...

    async def open(self, session: Session, policy: SessionPolicy, at: str | None = None) -> str:
        """Let a session in by its key.

        Args:
            session: Its attempt is on record.
            policy: How its calls are sampled, limited and told apart.
            at: What `place` chose for it; absent: it is chosen now.

        Returns:
            The base address where it is served.

        Raises:
            GatewayError: The gateway does not serve, or the session or key is already in use.
        """
        ...

    async def close(self, session_id: SessionId) -> SessionUsage:
        """Turn a session's key away, and wait until all its calls and scores are on record.

        Raises:
            GatewayError: The session is not open.
        """
        ...

    async def lost(self, session_id: SessionId) -> GatewayError:
        """Wait until an open session can be served no longer, and say why: not in most runs."""
        ...

    async def usage_of(self, session_id: SessionId) -> SessionUsage:
        """Count what a session used; also after it was closed.

        Raises:
            GatewayError: The session was never open.
        """
        ...

    async def figures(self) -> Figures:
        """Add up what was done."""
        ...

    async def pause(self, holder: str = RUN) -> None:
        """Hold new calls back; running ones go on as far as the engine does.

        Args:
            holder: Who asks for it. Calls are let through when every holder has let go.
        """
        ...

    async def resume(self, holder: str = RUN) -> None:
        """Let calls through again, unless others still hold them back."""
        ...

    def paused_s(self) -> float:
        """Say for how long calls were held back altogether, up to now."""
        ...

    def connection_limits(self) -> ConnectionLimits:
        """Say what clients may take of time and room."""
        ...
