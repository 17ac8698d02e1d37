"""The running stage: a harness in its sandbox, until it ends or its budget is used up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

from polar.gateway import ModelBoundary, SessionPolicy, SessionUsage
from polar.harnesses.base import Harness, LaunchRequest
from polar.rollout.settings import RolloutSettings
from polar.runtimes.base import ExecResult, Sandbox
from polar.types import Session, SessionId, Task

__all__ = ["HarnessRuns", "Ran"]

_FOREVER_S = 7 * 86_400.0
_RECHECK_S = 0.05
"""A run's budget is looked at no more often: the time paused is known only up to now."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How the running stage ended."""

    result: ExecResult | None
    """How the harness exited; absent: its budget was used up."""
    usage: SessionUsage
    """What it asked of the gateway."""
    ended_well: bool = True
    """Whether the harness ended by itself, as its preset reads the exit; false: it broke."""


class HarnessRuns:
    """Runs harnesses, each with a key of its own to the gateway while it runs.

    Args:
        gateway: Serves the harness; already serving.
        harness: The agent program.
        model_name: The model name that the harness sends.
        settings: Sampling and budgets.
    """

    def __init__(
        self,
        *,
        gateway: ModelBoundary,
        harness: Harness,
        model_name: str,
        settings: RolloutSettings,
    ) -> None:
        self._gateway = gateway
        self._harness = harness
        self._model_name = model_name
        self._settings = settings

    async def run(self, task: Task, session: Session, sandbox: Sandbox, url: str) -> Ran:
        """Start the harness and wait for it; its calls are on record when this returns.

        Args:
            task: What to do.
            session: Whose key lets the harness in.
            sandbox: Where it runs.
            url: Where the gateway said that the session is served.

        Raises:
            GatewayError: The gateway can serve the session no longer.
            RuntimeFailed: The harness could not be started.
        """
        launch = self._harness.launch(
            LaunchRequest(task.instruction, self._model_name, session.key, sandbox.place)
        )
        await self._gateway.open(session, self._policy(task), url)
        try:
            await sandbox.put_files(launch.files)
            running = sandbox.run(launch.process, timeout_s=_FOREVER_S)
            result = await self._within_budget(running, session.id, task.limits.run_s)
        finally:
            usage = await self._gateway.close(session.id)
        return Ran(result, usage, result is None or self._harness.ended_well(result))

    def _policy(self, task: Task) -> SessionPolicy:
        settings = self._settings
        return SessionPolicy(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            max_tokens=settings.max_tokens,
            max_calls=min(task.limits.max_calls, settings.max_calls or task.limits.max_calls),
            kind_of=self._harness.kind_of,
            agent_header=self._harness.agent_header,
            agent_tool=self._harness.agent_tool,
            whole_calls=self._harness.whole_calls,
        )

    async def _within_budget(
        self, running: Coroutine[None, None, ExecResult], session_id: SessionId, budget_s: float
    ) -> ExecResult | None:
        """Wait for the harness; time that the gateway was paused is charged to nobody."""
        loop = asyncio.get_running_loop()
        started, paused = loop.time(), self._gateway.paused_s()
        process = asyncio.create_task(running)
        lost = asyncio.create_task(self._gateway.lost(session_id))
        try:
            while True:
                used = loop.time() - started - (self._gateway.paused_s() - paused)
                if used >= budget_s:
                    return None
                done, _ = await asyncio.wait(
                    {process, lost},
                    timeout=max(budget_s - used, _RECHECK_S),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if lost in done:
                    raise lost.result()
                if process in done:
                    return process.result()
        finally:
            process.cancel()
            lost.cancel()
            await asyncio.wait({process, lost})
