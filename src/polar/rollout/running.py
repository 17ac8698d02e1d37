"""The running stage: a harness in its sandbox, until it ends or its budget is used up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

from polar.gateway import Gateway, SessionPolicy, SessionUsage
from polar.harnesses.base import Harness, LaunchRequest
from polar.rollout.settings import RolloutSettings
from polar.runtimes.base import ExecResult, Sandbox
from polar.types import Session, Task

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
        self, *, gateway: Gateway, harness: Harness, model_name: str, settings: RolloutSettings
    ) -> None:
        self._gateway = gateway
        self._harness = harness
        self._model_name = model_name
        self._settings = settings

    async def run(self, task: Task, session: Session, sandbox: Sandbox) -> Ran:
        """Start the harness and wait for it; its calls are on record when this returns."""
        launch = self._harness.launch(
            LaunchRequest(task.instruction, self._model_name, session.key, sandbox.place)
        )
        self._gateway.open(session, self._policy(task))
        try:
            await sandbox.put_files(launch.files)
            result = await self._within_budget(
                sandbox.run(launch.process, timeout_s=_FOREVER_S), task.limits.run_s
            )
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
        )

    async def _within_budget(
        self, running: Coroutine[None, None, ExecResult], budget_s: float
    ) -> ExecResult | None:
        """Wait for the harness; time that the gateway was paused is charged to nobody."""
        loop = asyncio.get_running_loop()
        started, paused = loop.time(), self._gateway.paused_s()
        process = asyncio.create_task(running)
        try:
            while True:
                used = loop.time() - started - (self._gateway.paused_s() - paused)
                if used >= budget_s:
                    return None
                done, _ = await asyncio.wait({process}, timeout=max(budget_s - used, _RECHECK_S))
                if done:
                    return process.result()
        finally:
            if not process.done():
                process.cancel()
                await asyncio.wait({process})
