"""Runs sessions through their stages and hands out complete groups of trajectories."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, assert_never

from polar import trajectory
from polar.errors import JournalError, PolarError, RuntimeFailed
from polar.evaluators import from_spec
from polar.evaluators.base import Evaluation
from polar.gateway import Gateway, SessionPolicy
from polar.harnesses.base import Harness, LaunchRequest
from polar.rollout.settings import RolloutSettings
from polar.runtimes.base import ExecResult, Runtime, Sandbox, SandboxSpec
from polar.store.base import Journal, SessionRecord
from polar.tasks import lay_out
from polar.types import (
    CallId,
    Cancelled,
    Completed,
    Ended,
    Failed,
    Grade,
    Group,
    Outcome,
    Session,
    SessionId,
    Stage,
    Task,
    TimedOut,
    Trajectory,
)

__all__ = ["Plan", "Rollout", "SessionEvent", "reward_of"]

_RECHECK_S = 0.05
"""A run's budget is looked at no more often: the time paused is known only up to now."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which sessions to run: every task `samples` times."""

    tasks: tuple[Task, ...]
    samples: int
    """Sessions of a task: the size of its group."""
    phase: str
    """`train`, `heldout_before`, ...: names the sessions, kept in the journal."""
    step: int = 0
    weight_version: int | None = None
    """Weights that are served. Sessions that an earlier process of the run finished are taken
    over from the journal when these weights sampled them; absent: whichever did."""
    max_age: int = 0
    """How many versions older the weights may be that sampled a session that is taken over."""
    places: tuple[int, ...] | None = None
    """Numbers of the tasks, which name their sessions; absent: 0, 1, and so on."""

    def session_id(self, task_index: int, sample: int) -> SessionId:
        """Name a session; the same plan names the same sessions after a restart."""
        return SessionId(f"{self.group_id(task_index)}-{sample:02d}")

    def group_id(self, task_index: int) -> str:
        """Name a group."""
        place = task_index if self.places is None else self.places[task_index]
        return f"{self.phase}-{self.step:04d}-{place:03d}"


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A session entered a stage or ended."""

    session_id: SessionId
    state: Literal["preparing", "ready", "running", "grading", "completed", "failed", "timed_out"]
    trajectory: Trajectory | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    """How the running stage ended: the harness exited, or its budget was used up."""

    result: ExecResult | None


def reward_of(outcome: Outcome) -> float:
    """Read the reward of an outcome; what was never graded has earned nothing."""
    match outcome:
        case Completed(grade=grade) | TimedOut(grade=Grade() as grade):
            return grade.reward
        case TimedOut() | Failed() | Cancelled() | Ended():
            return 0.0
        case _:
            assert_never(outcome)


class Rollout:
    """Expands tasks into sessions and runs each through preparing, running and grading.

    Every stage has its own slots, so a slow sandbox start never holds a run slot and a slow
    grader never holds a model slot.

    Args:
        gateway: Serves the harness; already serving at `gateway_url`.
        gateway_url: Its base address as seen from this process.
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
        gateway: Gateway,
        gateway_url: str,
        runtime: Runtime,
        harness: Harness,
        journal: Journal,
        work_root: Path,
        model_name: str,
        settings: RolloutSettings,
        on_event: Callable[[SessionEvent], None] = lambda event: None,
        new_key: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        self._gateway = gateway
        self._gateway_url = gateway_url
        self._runtime = runtime
        self._harness = harness
        self._journal = journal
        self._work_root = work_root
        self._model_name = model_name
        self._settings = settings
        self._on_event = on_event
        self._new_key = new_key
        self._installation = harness.find()
        self._preparing = asyncio.Semaphore(settings.prepare_workers)
        self._ready = asyncio.Semaphore(settings.ready_buffer)
        self._running = asyncio.Semaphore(settings.run_workers)
        self._grading = asyncio.Semaphore(settings.grade_workers)

    async def collect(self, plan: Plan) -> AsyncGenerator[Group, None]:
        """Run a plan and yield each group as soon as its last session has ended.

        Closing the iterator cancels what still runs and kills its sandboxes.

        Raises:
            JournalError: The journal can no longer be written; nothing unrecorded was sent.
            FidelityError: The calls of a session contradict each other.
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
            outcome = await self._attempt(plan, task, session)
            if _is_graded(outcome):
                break
        done = await self._trajectory(task, session, outcome)
        state = _state_of(outcome)
        self._on_event(SessionEvent(session.id, state, done))
        return done

    async def _take_over(self, plan: Plan, task: Task, record: SessionRecord) -> Trajectory | None:
        """Use a session that an earlier process finished, if the same weights sampled it."""
        if record.outcome is None or not _is_graded(record.outcome):
            return None
        if record.session.task_id != task.id:
            return None
        if plan.weight_version is not None:
            calls = await self._journal.calls(record.session.id, record.session.attempt)
            versions = {int(v) for call in calls for v in call.weight_versions}
            oldest = plan.weight_version - plan.max_age
            if not versions or not versions <= set(range(oldest, plan.weight_version + 1)):
                return None
        done = await self._trajectory(task, record.session, record.outcome)
        self._on_event(SessionEvent(record.session.id, _state_of(record.outcome), done))
        return done

    async def _attempt(self, plan: Plan, task: Task, session: Session) -> Outcome:
        """Run one attempt through its stages; what breaks is an outcome, not an exception."""
        await self._journal.open_session(session, phase=plan.phase, step=plan.step)
        work_dir = self._work_root / f"{session.id}-{session.attempt}"
        stage: Stage = "preparing"
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(
                    asyncio.to_thread, shutil.rmtree, work_dir, ignore_errors=True
                )
                async with self._preparing:
                    await self._ready.acquire()
                    release_ready = _Once(self._ready.release)
                    stack.callback(release_ready)
                    await self._enter(session, "preparing")
                    async with asyncio.timeout(task.limits.prepare_s):
                        sandbox_stack = await stack.enter_async_context(AsyncExitStack())
                        sandbox = await self._prepare(task, work_dir, sandbox_stack)
                self._on_event(SessionEvent(session.id, "ready"))
                async with self._running:
                    release_ready()
                    stage = "running"
                    await self._enter(session, "running")
                    ended = await self._run(task, session, sandbox)
                await sandbox_stack.aclose()
                async with self._grading:
                    stage = "grading"
                    await self._enter(session, "grading")
                    outcome = await self._grade(task, session, work_dir, ended)
        except TimeoutError:
            outcome = TimedOut(stage)
        except JournalError:
            raise
        except PolarError as error:
            outcome = Failed(stage, str(error))
        if self._gateway.failure is not None:
            raise self._gateway.failure
        await self._journal.set_state(session, _state_of(outcome), outcome)
        return outcome

    async def _enter(self, session: Session, state: Stage) -> None:
        await self._journal.set_state(session, state)
        self._on_event(SessionEvent(session.id, state))

    async def _prepare(self, task: Task, work_dir: Path, stack: AsyncExitStack) -> Sandbox:
        await asyncio.to_thread(_lay_files, work_dir, task.files)
        return await stack.enter_async_context(
            self._runtime.start(
                SandboxSpec(
                    work_dir=work_dir,
                    limits=task.limits,
                    read_only=self._installation.read_only,
                    gateway_url=self._gateway_url,
                )
            )
        )

    async def _run(self, task: Task, session: Session, sandbox: Sandbox) -> _Running:
        settings = self._settings
        policy = SessionPolicy(
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_tokens=settings.max_tokens,
            max_calls=min(task.limits.max_calls, settings.max_calls or task.limits.max_calls),
            kind_of=self._harness.kind_of,
        )
        launch = self._harness.launch(
            LaunchRequest(task.instruction, self._model_name, session.key, sandbox.place)
        )
        self._gateway.open(session, policy)
        try:
            await sandbox.put_files(launch.files)
            return await self._within_budget(
                sandbox.run(launch.process, timeout_s=_FOREVER_S), task.limits.run_s
            )
        finally:
            await self._gateway.close(session.id)

    async def _within_budget(
        self, running: Coroutine[None, None, ExecResult], budget_s: float
    ) -> _Running:
        """Wait for the harness; time that the gateway was paused is charged to nobody."""
        loop = asyncio.get_running_loop()
        started, paused = loop.time(), self._gateway.paused_s()
        process = asyncio.create_task(running)
        try:
            while True:
                used = loop.time() - started - (self._gateway.paused_s() - paused)
                if used >= budget_s:
                    return _Running(None)
                done, _ = await asyncio.wait({process}, timeout=max(budget_s - used, _RECHECK_S))
                if done:
                    return _Running(process.result())
        finally:
            if not process.done():
                process.cancel()
                await asyncio.wait({process})

    async def _grade(
        self, task: Task, session: Session, work_dir: Path, ended: _Running
    ) -> Outcome:
        if ended.result is not None and (broken := await self._broken(session, ended.result)):
            return Failed("running", broken)
        evaluator = from_spec(task.evaluator)
        async with asyncio.timeout(task.limits.grade_s):
            try:
                grade = await evaluator.grade(Evaluation(task, work_dir, self._runtime))
            except (PolarError, TimeoutError):
                raise
            except Exception as error:  # a grader may be anyone's code
                return Failed("grading", f"the grader broke: {error!r}")
        if ended.result is None:
            return TimedOut("running", grade)
        return Completed(grade, ended.result.exit_code)

    async def _broken(self, session: Session, result: ExecResult) -> str | None:
        """Say how a session ended through no doing of the model; None when it did not."""
        calls = await self._journal.calls(session.id, session.attempt)
        if not calls:
            tail = (result.stderr or result.stdout).strip()[-500:]
            return f"the harness made no model call (exit {result.exit_code}): {tail}"
        # Titles, sub-agents and the agent's own use of the address may come after it.
        *_, last = [call for call in calls if call.kind == "main"] or calls
        if last.finish_reason == "error":
            return f"the engine failed in the last call, {last.id}"
        return None

    async def _trajectory(self, task: Task, session: Session, outcome: Outcome) -> Trajectory:
        calls = await self._journal.calls(session.id, session.attempt)
        built = trajectory.build(
            calls,
            builder=self._settings.builder,
            policy=trajectory.BuildPolicy(max_trace_tokens=self._settings.max_trace_tokens),
        )
        return await self._credited(session, built, outcome) or Trajectory(
            session_id=session.id,
            task_id=task.id,
            group_id=session.group_id,
            traces=built.traces,
            reward=reward_of(outcome),
            outcome=outcome,
            report=built.report,
        )

    async def _credited(
        self, session: Session, built: trajectory.Built, outcome: Outcome
    ) -> Trajectory | None:
        """Give credit as the settings say; None where nothing was graded."""
        settings = self._settings
        policy = trajectory.CreditPolicy(by=settings.credit, discount=settings.discount)
        scores: Mapping[CallId, float] = {}
        if policy.by == "steps":
            scores = await self._journal.scores(session.id, session.attempt)
        return trajectory.credit(session, built, outcome, policy=policy, step_rewards=scores)


_FOREVER_S = 7 * 86_400.0


class _Once:
    """Calls a function at its first call only."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function

    def __call__(self) -> None:
        if self._function is not None:
            self._function()
            self._function = None


def _state_of(outcome: Outcome) -> Literal["completed", "failed", "timed_out"]:
    match outcome:
        case Completed() | Ended():
            return "completed"
        case TimedOut():
            return "timed_out"
        case Failed() | Cancelled():
            return "failed"
        case _:
            assert_never(outcome)


def _is_graded(outcome: Outcome) -> bool:
    """Tell a session that says something about the model from one that has to run again."""
    return isinstance(outcome, Completed) or (
        isinstance(outcome, TimedOut) and outcome.grade is not None
    )


def _lay_files(work_dir: Path, files: Mapping[str, str]) -> None:
    try:
        shutil.rmtree(work_dir, ignore_errors=True)
        work_dir.mkdir(parents=True)
        lay_out(files, work_dir)
    except OSError as error:
        raise RuntimeFailed(
            f"the work folder cannot be made: {error}",
            where=str(work_dir),
            fix="Check free space and permissions there.",
        ) from error
