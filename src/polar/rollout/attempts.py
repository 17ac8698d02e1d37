"""One attempt of a session on its way through the stages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polar.errors import JournalError, PolarError, RuntimeFailed
from polar.evaluators.base import Evaluation
from polar.gateway import ModelBoundary
from polar.harnesses.base import Harness
from polar.rollout.endings import state_of
from polar.rollout.faults import describe
from polar.rollout.grading import graded
from polar.rollout.plan import Plan, SessionEvent
from polar.rollout.running import HarnessRuns
from polar.rollout.settings import RolloutSettings
from polar.rollout.slots import Slots
from polar.runtimes.base import Runtime, Sandbox, SandboxSpec
from polar.runtimes.scratch import remove_folder
from polar.store.base import Journal
from polar.tasks import lay_out
from polar.types import Failed, Outcome, Session, Stage, Task, TimedOut

__all__ = ["Attempts"]

_log = logging.getLogger("polar.rollout")


class Attempts:
    """Runs attempts through preparing, running and grading.

    Every stage has its own slots, so a slow sandbox start never holds a run slot and a slow
    grader never holds a model slot.

    Args:
        gateway: Serves the harness; already serving.
        runtime: Starts sandboxes.
        harness: The agent program.
        journal: Where sessions and calls are kept.
        work_root: Folder for the work folders, absolute; each is removed after grading.
        model_name: The model name that the harness sends.
        settings: Pool sizes, sampling, budgets.
        on_event: Called at every change of a session's stage.
    """

    def __init__(  # noqa: PLR0913 - the rollout hands over every collaborator by name
        self,
        *,
        gateway: ModelBoundary,
        runtime: Runtime,
        harness: Harness,
        journal: Journal,
        work_root: Path,
        model_name: str,
        settings: RolloutSettings,
        on_event: Callable[[SessionEvent], None],
    ) -> None:
        self._gateway = gateway
        self._runtime = runtime
        self._journal = journal
        self._settings = settings
        self._work_root = work_root
        self._on_event = on_event
        self._installation = harness.find()
        self._runs = HarnessRuns(
            gateway=gateway, harness=harness, model_name=model_name, settings=settings
        )
        self._preparing = Slots(settings.prepare_workers)
        self._ready = Slots(settings.ready_buffer)
        self._running = Slots(settings.run_workers)
        self._grading = Slots(settings.grade_workers)

    async def run(self, plan: Plan, task: Task, session: Session) -> Outcome:
        """Run one attempt; what breaks is an outcome, not an exception.

        Raises:
            JournalError: The journal can no longer be written.
        """
        await self._journal.open_session(session, phase=plan.phase, step=plan.step)
        at = _At()
        try:
            outcome = await self._through(task, session, at, rank=plan.step)
        except TimeoutError:
            outcome = TimedOut(at.stage)
        except JournalError:
            raise
        except PolarError as error:
            outcome = Failed(at.stage, str(error))
        except asyncio.CancelledError as error:
            task_now = asyncio.current_task()
            if task_now is None or task_now.cancelling():
                raise
            outcome = self._fault(session, at, error)  # nobody asked for it
        except (Exception, SystemExit) as error:  # harness, grader and runtime may be plug-ins
            outcome = self._fault(session, at, error)
        if self._gateway.failure is not None:
            raise self._gateway.failure
        await self._journal.set_state(session, state_of(outcome), outcome)
        return outcome

    def _remove_work(self, session: Session) -> None:
        """Remove the attempt's work folder, and those of earlier ones whose process was killed."""
        for attempt in range(session.attempt + 1):
            remove_folder(self._work_root / f"{session.id}-{attempt}")

    def _fault(self, session: Session, at: _At, error: BaseException) -> Failed:
        _log.error(
            "session %s, attempt %d, while %s",
            session.id,
            session.attempt,
            at.stage,
            exc_info=error,
        )
        return Failed(at.stage, describe(error))

    async def _through(self, task: Task, session: Session, at: _At, *, rank: int) -> Outcome:
        """Pass the stages, earlier steps first.

        However this is left, sandbox, slots and work folder are free.
        """
        work_dir = self._work_root / f"{session.id}-{session.attempt}"
        async with AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, self._remove_work, session)
            async with self._preparing.hold(rank):
                await self._ready.acquire(rank)
                release_ready = _Once(self._ready.release)
                stack.callback(release_ready)
                await self._enter(session, at, "preparing")
                url = self._gateway.place()
                async with asyncio.timeout(task.limits.prepare_s):
                    sandbox_stack = await stack.enter_async_context(AsyncExitStack())
                    sandbox = await self._prepare(task, work_dir, url, sandbox_stack)
            self._on_event(SessionEvent(session.id, "ready"))
            async with self._running.hold(rank):
                release_ready()
                await self._enter(session, at, "running")
                ran = await self._runs.run(task, session, sandbox, url)
            await sandbox_stack.aclose()
            async with self._grading.hold(rank):
                await self._enter(session, at, "grading")
                evaluation = Evaluation(task, work_dir, self._runtime)
                return await graded(
                    session, evaluation, ran, journal=self._journal, settings=self._settings
                )

    async def _enter(
        self, session: Session, at: _At, stage: Literal["preparing", "running", "grading"]
    ) -> None:
        at.stage = stage
        await self._journal.set_state(session, stage)
        self._on_event(SessionEvent(session.id, stage))

    async def _prepare(
        self, task: Task, work_dir: Path, url: str, stack: AsyncExitStack
    ) -> Sandbox:
        await asyncio.to_thread(_lay_files, work_dir, task.files)
        return await stack.enter_async_context(
            self._runtime.start(
                SandboxSpec(
                    work_dir=work_dir,
                    limits=task.limits,
                    read_only=self._installation.read_only,
                    gateway_url=url,
                )
            )
        )


@dataclass(slots=True)
class _At:
    """Where an attempt is."""

    stage: Stage = "preparing"


class _Once:
    """Calls a function at its first call only."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function

    def __call__(self) -> None:
        if self._function is not None:
            self._function()
            self._function = None


def _lay_files(work_dir: Path, files: Mapping[str, str]) -> None:
    try:
        remove_folder(work_dir)
        work_dir.mkdir(parents=True)
        lay_out(files, work_dir)
    except OSError as error:
        raise RuntimeFailed(
            f"the work folder cannot be made: {error}",
            where=str(work_dir),
            fix="Check free space and permissions there.",
        ) from error
