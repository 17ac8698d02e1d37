"""One worker of the gateway: composed of what the run's own process sends over a socket.

    python -m polar.cli.gateway_worker LINK LISTENER

Both are numbers of open descriptors. It ends when it is asked to, and with the process that started
it, however that ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from polar.cli.loop import keep_loaded, run_async
from polar.engines.servers import KnownWeights, ReplicatedEngine
from polar.engines.taped import TapedEngine
from polar.errors import GatewayError
from polar.gateway import Gateway, GatewaySettings
from polar.gateway.link import Link
from polar.gateway.messages import RecordingFailed
from polar.gateway.worker import ForwardedLog, Worker
from polar.rendering.base import Renderer
from polar.store import ForwardedRecords

__all__ = ["Welcome", "spawn_worker"]


@dataclass(frozen=True, slots=True)
class Welcome:
    """All that a worker is made of; answered when it serves."""

    make_engine: Callable[[], ReplicatedEngine]
    make_renderer: Callable[[], Renderer]
    settings: GatewaySettings
    journal: Path
    """Written by the run's own process, read here."""
    cache_mb: int
    """Memory for earlier calls, which later ones are stored as deltas on."""
    tape: Path | None
    """Absent: what the engine samples is not taped."""
    weights: KnownWeights


async def spawn_worker(number: int, link: socket.socket, listener: socket.socket) -> Process:
    """Start a worker's process, which a Ctrl-C at the terminal does not reach."""
    descriptors = (link.fileno(), listener.fileno())
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "polar.cli.gateway_worker", *map(str, descriptors)),
        pass_fds=descriptors,
        stdin=DEVNULL,
        stdout=DEVNULL,
        start_new_session=True,
    )


async def _work(link_fd: int, listener_fd: int) -> None:
    """Serve until the owner wants the end."""
    made: asyncio.Queue[Worker] = asyncio.Queue()
    worker: Worker | None = None
    async with AsyncExitStack() as stack:

        async def handle(message: object) -> object:
            nonlocal worker
            if isinstance(message, Welcome):
                worker = await _start(message, link, listener, stack)
                made.put_nowait(worker)
                return None
            if worker is None:
                raise GatewayError("the worker was not started yet")
            return await worker.handle(message)

        # What still runs has nobody who would put it on record: it must not reach the tape either.
        link = Link(handle, on_lost=lambda: os._exit(1))
        listener = socket.socket(fileno=listener_fd)
        await link.connect(socket.socket(fileno=link_fd))
        await (await made.get()).stopped.wait()


async def _start(
    welcome: Welcome, link: Link, listener: socket.socket, stack: AsyncExitStack
) -> Worker:
    logging.getLogger("polar").addHandler(ForwardedLog(link))
    engine = welcome.make_engine()
    engine.follow(link.tell)
    await engine.hear(welcome.weights)
    sampled = engine if welcome.tape is None else TapedEngine(engine, welcome.tape)
    stack.push_async_callback(sampled.aclose)
    gateway = Gateway(
        sampled,
        await asyncio.to_thread(welcome.make_renderer),
        ForwardedRecords(link.ask, welcome.journal, welcome.cache_mb),
        welcome.settings,
        on_failure=lambda error: link.tell(RecordingFailed(error)),
    )
    await stack.enter_async_context(gateway.serve(listener=listener))
    keep_loaded()
    return Worker(gateway, engine)


if __name__ == "__main__":
    # Under its own name: what it is sent names its classes by their module.
    from polar.cli.gateway_worker import _work as work

    run_async(work(int(sys.argv[1]), int(sys.argv[2])))
