"""A worker's side of a gateway of several processes: does what the owner asks for."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from logging.handlers import QueueHandler
from queue import SimpleQueue

from polar.engines.servers import KnownWeights, Lost, ReplicatedEngine
from polar.errors import GatewayError
from polar.gateway.gateway import Gateway
from polar.gateway.link import Link
from polar.gateway.messages import Close, FiguresOf, Open, Pause, Ping, Resume, Stop, UsageOf
from polar.gateway.policy import SessionUsage

__all__ = ["ForwardedLog", "Worker"]


class Worker:
    """Answers the owner's messages.

    Args:
        gateway: Already serving.
        engine: What it samples from; learns from the owner what the servers' weights are.
    """

    def __init__(self, gateway: Gateway, engine: ReplicatedEngine) -> None:
        self._gateway = gateway
        self._engine = engine
        self.stopped = asyncio.Event()
        """Set when the owner wants it to end."""

    async def handle(self, message: object) -> object:
        """Do what is asked, and answer.

        Raises:
            GatewayError: It cannot be done.
        """
        match message:
            case Open():
                await self._gateway.open(message.session, message.policy)
            case Close():
                return _sendable(await self._gateway.close(message.session_id))
            case UsageOf():
                return _sendable(await self._gateway.usage_of(message.session_id))
            case FiguresOf():
                return await self._gateway.figures()
            case Pause():
                await self._gateway.pause()
            case Resume():
                await self._gateway.resume()
            case KnownWeights() | Lost():
                await self._engine.hear(message)
            case Ping():
                return None
            case Stop():
                self.stopped.set()
            case _:
                raise GatewayError(f"a worker knows no message {type(message).__name__}")
        return None


class ForwardedLog(QueueHandler):
    """Gives log records to the owner, whose run writes them to its folder.

    Args:
        link: To the owner.
    """

    def __init__(self, link: Link) -> None:
        super().__init__(SimpleQueue())  # which nothing is put into: `enqueue` sends it
        self._link = link
        self._loop = asyncio.get_running_loop()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record, whose arguments and traceback are text by now."""
        self._loop.call_soon_threadsafe(self._link.tell, record)


def _sendable(usage: SessionUsage) -> SessionUsage:
    """Put what can be pickled in place of a view of a mapping."""
    return replace(usage, forks=dict(usage.forks))
