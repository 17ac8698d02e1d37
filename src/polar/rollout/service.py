"""Expands tasks into sessions and hands out complete groups of trajectories."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from polar.gateway import ModelBoundary
from polar.harnesses.base import Harness
from polar.rollout.attempts import Attempts
from polar.rollout.building import Building
from polar.rollout.endings import is_graded, state_of
from polar.rollout.faults import FaultStreak
from polar.rollout.plan import Plan, SessionEvent
from polar.rollout.settings import RolloutSettings
from polar.runtimes.base import Runtime
from polar.store.base import Journal, SessionRecord
from polar.types import Group, Session, SessionId, Task, Trajectory

__all__ = ["Rollout"]


class Rollout:
    """Expands tasks into sessions, runs each until it is graded, and builds its trajectory.

    Args:
        gateway: Serves the harness; already serving.
        runtime: Starts sandboxes.
        harness: The agent program.
        journal: Where sessions and calls are kept.
        work_root: Folder for the sessions' work folders, absolute; each is removed after grading.
        model_name: The model name that the harness sends.
        settings: Pool sizes, sampling, budgets.
        on_event: Called at every change of a session's stage.
    """

    def __init__(  # noqa: PLR0913 - the composition root hands over every collaborator by name
        self,
        *,
        gateway: ModelBoundary,
        runtime: Runtime,
        harness: Harness,
        journal: Journal,
        work_root: Path,
        model_name: str,
        settings: RolloutSettings,
        on_event: Callable[[SessionEvent], None] = lambda event: None,
        new_key: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        self._journal = journal
        self._building = Building(journal, settings)
        self._settings = settings
        self._on_event = on_event
        self._new_key = new_key
        self._streak = FaultStreak(settings.stop_after_failures)
        self._attempts = Attempts(
            gateway=gateway,
            runtime=runtime,
            harness=harness,
            journal=journal,
            work_root=work_root,
            model_name=model_name,
            settings=settings,
            on_event=on_event,
        )

    async def collect(self, plan: Plan) -> AsyncGenerator[Group, None]:
        """Run a plan and yield each group as soon as its last session has ended.

        Closing the iterator cancels what still runs and kills its sandboxes.

        Raises:
            JournalError: The journal can no longer be written; nothing unrecorded was sent.
            SessionsBroken: Session after session ended without a grade.
        """
        known = await self._known(plan)
        finished: asyncio.Queue[Group | BaseException] = asyncio.Queue()

        async def run_group(index: int, task: Task) -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    sessions = [
                        group.create_task(self._session(plan, index, sample, task, known))
                        for sample in range(plan.samples)
                    ]
                trajectories = tuple(session.result() for session in sessions)
                finished.put_nowait(Group(plan.group_id(index), task, trajectories))
            except BaseExceptionGroup as errors:
                finished.put_nowait(errors.exceptions[0])

        # No TaskGroup here: it would wrap what is raised, and GeneratorExit, in a group.
        running = [asyncio.create_task(run_group(*each)) for each in enumerate(plan.tasks)]
        try:
            for _ in plan.tasks:
                item = await finished.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def collect_all(
        self, plan: Plan, *, on_group: Callable[[Group], None] = lambda group: None
    ) -> tuple[Group, ...]:
        """Run a plan to its end; groups come in the plan's order.

        Args:
            plan: What to run.
            on_group: Called with each group as soon as its last session has ended.
        """
        found = {}
        async with aclosing(self.collect(plan)) as groups:
            async for group in groups:
                found[group.id] = group
                on_group(group)
        return tuple(found[plan.group_id(index)] for index in range(len(plan.tasks)))

    async def _known(self, plan: Plan) -> Mapping[SessionId, SessionRecord]:
        records = await self._journal.sessions(phase=plan.phase)
        return {record.session.id: record for record in records if record.step == plan.step}

    async def _session(
        self,
        plan: Plan,
        task_index: int,
        sample: int,
        task: Task,
        known: Mapping[SessionId, SessionRecord],
    ) -> Trajectory:
        session_id = plan.session_id(task_index, sample)
        record = known.get(session_id)
        if record is not None and (taken := await self._take_over(plan, task, record)) is not None:
            return taken
        first = record.session.attempt + 1 if record is not None else 0
        session = Session(session_id, task.id, plan.group_id(task_index), first, self._new_key())
        for attempt in range(first, first + self._settings.max_attempts):
            session = replace(session, attempt=attempt, key=self._new_key())
            outcome = await self._attempts.run(plan, task, session)
            done = await self._building.build(session, outcome)
            if is_graded(done.outcome):
                break
        self._on_event(SessionEvent(session.id, state_of(done.outcome), done))
        self._streak.add(session.id, done.outcome)
        return done

    async def _take_over(self, plan: Plan, task: Task, record: SessionRecord) -> Trajectory | None:
        """Use a session that an earlier process finished, if the same weights sampled it."""
        if record.outcome is None or not is_graded(record.outcome):
            return None
        if record.session.task_id != task.id:
            return None
        if plan.weight_version is not None:
            calls = await self._journal.calls(record.session.id, record.session.attempt)
            versions = {int(v) for call in calls for v in call.weight_versions}
            oldest = plan.weight_version - plan.max_age
            if not versions or not versions <= set(range(oldest, plan.weight_version + 1)):
                return None
        done = await self._building.build(record.session, record.outcome)
        if not is_graded(done.outcome):
            return None
        self._on_event(SessionEvent(record.session.id, state_of(done.outcome), done))
        return done
