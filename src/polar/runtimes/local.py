"""Runs sessions as plain local processes: limits and a clean environment, but no isolation."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from polar.runtimes.base import Place, SandboxSpec
from polar.runtimes.launching import Command, boot, launched
from polar.runtimes.sandbox import Identity, LaunchedSandbox, resource_limits
from polar.runtimes.scratch import scratch_folder
from polar.runtimes.settings import LocalSettings
from polar.runtimes.warm import WarmParents

__all__ = ["LocalRuntime"]

_READY_S = 30.0
_PATH = "/usr/local/bin:/usr/bin:/bin"


class LocalRuntime:
    """Runs each session as a plain process with a private home and a clean environment.

    The agent can do whatever the user who runs Polar can do.

    Args:
        settings: How it behaves.
    """

    def __init__(self, settings: LocalSettings | None = None) -> None:
        self._settings = settings or LocalSettings()
        self._warm = WarmParents() if self._settings.preload else None

    @asynccontextmanager
    async def start(self, spec: SandboxSpec) -> AsyncIterator[LaunchedSandbox]:
        """Start a sandbox; leaving the context kills every process in it.

        Raises:
            RuntimeFailed: It cannot be started.
        """
        work_dir = spec.work_dir.absolute()
        async with scratch_folder() as scratch:
            home, temporary = scratch / "home", scratch / "tmp"
            await asyncio.to_thread(temporary.mkdir)
            env = {
                "PATH": os.environ.get("PATH", _PATH),
                "HOME": str(home),
                "TMPDIR": str(temporary),
                "LANG": "C.UTF-8",
            }
            command = Command(
                role="init",
                python=(sys.executable, "-I", "-S", *boot()),
                env=env,
                cwd=scratch,
            )
            setup = {"home": str(home), "listen": None, "uid": None, "confine": False}
            async with launched(command, setup, ready_s=_READY_S) as init:
                yield LaunchedSandbox(
                    Place(str(work_dir), str(home), spec.gateway_url),
                    init.channel,
                    init_pid=init.greeting.pid,
                    identity=Identity(env, resource_limits(spec.limits, count_processes=False)),
                    warm=self._warm,
                )

    def protections(self) -> Mapping[str, bool]:
        """Say what is protected: memory and CPU of each process, nothing else."""
        return {
            "network": False,
            "root_read_only": False,
            "processes": False,
            "memory": True,
            "cpu": True,
        }

    async def aclose(self) -> None:
        """End the warm parents."""
        if self._warm is not None:
            await self._warm.aclose()
