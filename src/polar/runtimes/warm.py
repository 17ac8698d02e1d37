"""Warm parents: processes that have imported a harness already and fork it into sandboxes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from polar.errors import RuntimeFailed
from polar.runtimes.base import Preload
from polar.runtimes.channel import Channel
from polar.runtimes.launching import Command, boot, launched
from polar.runtimes.scratch import scratch_folder

__all__ = ["WarmParents"]

_IMPORT_S = 120.0
_log = logging.getLogger(__name__)


class WarmParents:
    """The warm parents of one runtime, one a preload, started when first asked for."""

    def __init__(self) -> None:
        self._channels: dict[Preload, Channel | None] = {}
        self._starting = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def get(self, preload: Preload) -> Channel | None:
        """Return the socket to the warm parent; nothing where the harness cannot be forked.

        A warm parent that died is started again.
        """
        async with self._starting:
            channel = self._channels.get(preload)
            if preload not in self._channels or (channel is not None and channel.lost):
                channel = await self._start(preload)
                self._channels[preload] = channel
            return channel

    def refuse(self, preload: Preload, reason: str) -> None:
        """Say once that the harness cannot be forked here, and use the plain way from now on."""
        if self._channels.get(preload) is not None:
            _say_cold(preload, reason)
        self._channels[preload] = None

    async def aclose(self) -> None:
        """End every warm parent; what they forked dies with them."""
        self._channels.clear()
        await self._stack.aclose()

    async def _start(self, preload: Preload) -> Channel | None:
        async with AsyncExitStack() as stack:
            home = await stack.enter_async_context(scratch_folder())
            command = Command(
                role="warm",
                python=(str(preload.python), "-I", *boot()),
                env={
                    "PATH": "/usr/local/bin:/usr/bin:/bin",
                    "HOME": str(home),
                    "TMPDIR": str(home),
                    "LANG": "C.UTF-8",
                    **preload.env,
                },
                cwd=home,
            )
            setup = {"modules": preload.modules}
            try:
                parent = await stack.enter_async_context(
                    launched(command, setup, ready_s=_IMPORT_S)
                )
            except RuntimeFailed as error:
                _say_cold(preload, str(error))
                return None
            if refused := parent.greeting.message["refused"]:
                _say_cold(preload, refused)
                return None
            self._stack.push_async_exit(stack.pop_all())
            return parent.channel


def _say_cold(preload: Preload, reason: str) -> None:
    _log.warning("%s is started anew for every session: %s", preload.entry, reason)
