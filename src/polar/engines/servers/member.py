"""One server among several: what it must be able to do, and how it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from polar.engines.base import Engine
from polar.engines.servers.stamping import ServerWeights

__all__ = ["Member", "Replica", "ReplicaStatus"]


class Replica(Engine, Protocol):
    """An engine on one server, whose failures are told apart.

    `ServerLost`: it does not answer; `ServerFailed`: it answers that it failed; `StaleWeights`: it
    sampled from weights that it should not have; any other `EngineError` is the request's fault.
    """

    @property
    def address(self) -> str:
        """Where the server is."""
        ...

    @property
    def weight_version(self) -> int | None:
        """Version of the weights that the last probe or update found; None: unknown weights.

        It is told by the server, not remembered: a server that was started anew has old weights.
        """
        ...

    @property
    def weights(self) -> ServerWeights | None:
        """What is known of its weights; absent: it keeps those that it was started with."""
        ...

    async def check(self) -> None:
        """See whether the server is up, cheaply and without sampling.

        Raises:
            EngineError: It is not.
        """
        ...

    async def drop_streams(self) -> None:
        """Hang up on all running requests, which then end with `ServerLost`."""
        ...


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """How a server is and what happened to it."""

    address: str
    serving: bool
    weight_version: int | None
    streams: int
    """Calls that it is sampling for."""
    losses: int
    """How often it was lost."""
    moved: int
    """Calls that had to leave it for another server."""
    reason: str
    """Why it was lost last; empty: it never was."""


@dataclass(slots=True)
class Member:
    """A server's present state, kept by `Health`."""

    replica: Replica
    serving: bool = False
    failures: int = 0
    """Failed checks or tries to bring it back, in a row."""
    streams: int = 0
    losses: int = 0
    moved: int = 0
    reason: str = ""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have it looked at now."""

    @property
    def address(self) -> str:
        """Where the server is."""
        return self.replica.address

    def status(self) -> ReplicaStatus:
        """Give the state as a value."""
        return ReplicaStatus(
            address=self.address,
            serving=self.serving,
            weight_version=self.replica.weight_version,
            streams=self.streams,
            losses=self.losses,
            moved=self.moved,
            reason=self.reason,
        )
