"""The training loop: collect groups, train on them, give the engine the new weights, measure."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from polar.errors import JournalError, RankLost, TrainingError
from polar.train.ahead import Ahead, collecting_ahead
from polar.train.begun import Begun, Collect
from polar.train.collecting import Collection, Collector
from polar.train.figures import figures_of, passed
from polar.train.loop_settings import LoopSettings
from polar.train.loop_state import Evaluation, Late, LoopState, wilson_interval
from polar.train.memory import release_freed_memory
from polar.train.staleness import within_bound
from polar.train.standing import has_spread
from polar.train.step_row import StepTimes, step_row
from polar.types import Group, Task, Trajectory

if TYPE_CHECKING:
    from polar.train.trainer import Trainer

__all__ = ["Collect", "TrainingLoop", "WeightSync"]


_STATE_FILE = "loop.json"


class WeightSync(Protocol):
    """Hands the trainer's weights to whatever samples."""

    async def before(self) -> None:
        """Stop sampling: the weights are about to change."""
        ...

    async def after(self, version: int) -> None:
        """Serve the new weights and go on sampling."""
        ...


class TrainingLoop:
    """Runs warm start, evaluation, reinforcement learning and evaluation again.

    Args:
        trainer: Holds the model and trains it.
        collect: Runs sessions of the policy.
        collect_expert: Runs the expert's sessions for the warm start.
        sync: Gives the engine the new weights.
        train_tasks: Tasks to learn from.
        heldout_tasks: Tasks to measure on, of kinds that are never trained.
        settings: Lengths and sizes.
        seed: Seed of the order of tasks.
        state_dir: Where the resumable state is kept.
        record: Called, in a thread, with each metrics row; the caller writes and shows it.
        keep: Called, in a thread, with each collection's groups, to write the trajectories.
        progress: Called with what is being done and the done share of it.
        saved: Called, in a thread, with each state that is on disk.
        clock: Seconds, monotonic.
    """

    def __init__(  # noqa: PLR0913 - the composition root hands over every collaborator by name
        self,
        *,
        trainer: Trainer,
        collect: Collect,
        collect_expert: Collect,
        sync: WeightSync,
        train_tasks: Sequence[Task],
        heldout_tasks: Sequence[Task],
        settings: LoopSettings,
        seed: int,
        state_dir: Path,
        record: Callable[[Mapping[str, object]], None],
        keep: Callable[[str, int, tuple[Group, ...]], None],
        progress: Callable[[str, float], None],
        saved: Callable[[LoopState], None] = lambda state: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trainer = trainer
        self._collect = collect
        self._collect_expert = collect_expert
        self._sync = sync
        self._collector = Collector(
            collect,
            train_tasks,
            settings=settings,
            seed=seed,
            teaches=partial(has_spread, settings=trainer.settings),
            clock=clock,
        )
        self._heldout_tasks = tuple(heldout_tasks[: settings.heldout_sessions])
        self._settings = settings
        self._state_dir = state_dir
        self._record = record
        self._keep = keep
        self._progress = progress
        self._on_saved = saved
        self._clock = clock
        self._state = LoopState(
            step=0, warm_started=False, before=None, spent_s=0.0, weight_version=0
        )
        self._saved: LoopState | None = None
        self._started = clock()
        self._evaluation_s = 0.0
        self._step_s = 0.0

    @property
    def state(self) -> LoopState:
        """How far the run is."""
        return self._state

    def resume(self) -> None:
        """Continue from the saved state of an earlier process; from the start if it saved none.

        Raises:
            ConfigError: The state cannot be read.
        """
        if not (self._state_dir / _STATE_FILE).exists():
            return
        self._state = LoopState.load(self._state_dir / _STATE_FILE)
        self._trainer.load_state(self._state.trainer_path(self._state_dir))
        self._saved = self._state

    async def run(self) -> tuple[Evaluation | None, Evaluation | None]:
        """Run to the end and return the held-out evaluations before and after.

        However it ends, the state of the last finished step is saved.
        """
        try:
            ends = await self._run()
        except BaseException as error:
            try:
                await self._save()
            except JournalError as unsaved:
                error.add_note(str(unsaved))
            raise
        await self._save()
        return ends

    async def _run(self) -> tuple[Evaluation | None, Evaluation | None]:
        await self._sync.before()
        await self._sync.after(self._trainer.weight_version)
        if not self._state.warm_started:
            await self._warm_start()
        if self._state.before is None and self._heldout_tasks:
            before = await self._evaluate("heldout_before")
            self._state = replace(self._state, before=before)
        await self._steps()
        after = await self._evaluate("heldout_after") if self._heldout_tasks else None
        return self._state.before, after

    async def _steps(self) -> None:
        """Take the steps that are left; with a staleness allowed, collect ahead of them."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._collector.aclose)
            self._collector.carry(self._state.late)
            ahead = None
            if self._settings.max_staleness:
                ahead = await stack.enter_async_context(
                    collecting_ahead(
                        self._collector,
                        first=self._state.step + 1,
                        last=self._settings.steps,
                        depth=self._settings.depth,
                    )
                )
            while self._state.step < self._settings.steps and self._time_left():
                await self._evaluate_between()
                await self._step(self._state.step + 1, ahead)

    def spent_s(self) -> float:
        """Wall seconds of this run, over all its processes."""
        return self._state.spent_s + self._clock() - self._started

    async def _warm_start(self) -> None:
        wanted = self._settings.warm_start
        if not wanted.sessions:
            self._state = replace(self._state, warm_started=True)
            return
        tasks = self._collector.warm_start_tasks(wanted.sessions)
        started = self._clock()
        groups = await self._collect_expert(tasks, samples=1, phase="warm_start", step=0)
        await asyncio.to_thread(self._keep, "warm_start", 0, groups)
        collected = self._clock()
        good = _passed(groups)

        def learn(progress: Callable[[float], None], _: Callable[[], None]) -> None:
            metrics = self._trainer.supervised(
                good,
                epochs=wanted.epochs,
                batch_sessions=wanted.batch_sessions,
                lr=wanted.lr,
                progress=progress,
            )
            self._advance()
            row = {
                **asdict(metrics),
                "phase": "warm_start",
                "step": 0,
                **asdict(figures_of(groups)),
                "rollout_s": collected - started,
                "train_s": self._clock() - collected,
            }
            self._record(row)

        await self._train("warm start", learn)

    async def _evaluate(self, phase: str) -> Evaluation:
        started = self._clock()
        groups = await self._collect(
            self._heldout_tasks, samples=1, phase=phase, step=self._state.step
        )
        self._evaluation_s = self._clock() - started
        await asyncio.to_thread(self._keep, phase, self._state.step, groups)
        figures = figures_of(groups)
        wins = sum(passed(t) for group in groups for t in group.trajectories)
        low, high = wilson_interval(wins, figures.sessions)
        found = Evaluation(
            passed=wins,
            sessions=figures.sessions,
            pass_at_1=wins / max(1, figures.sessions),
            low=low,
            high=high,
            rollout_s=self._evaluation_s,
        )
        row = {"phase": phase, "step": self._state.step, **asdict(figures), **asdict(found)}
        await asyncio.to_thread(self._record, row)
        return found

    async def _evaluate_between(self) -> None:
        """Measure on the held-out tasks when it is time, once for a step."""
        every, step = self._settings.evaluate_every, self._state.step
        if not (every and step and self._heldout_tasks) or step % every:
            return
        if self._state.evaluated < step:
            await self._evaluate("heldout")
            self._state = replace(self._state, evaluated=step)

    async def _step(self, step: int, ahead: Ahead[Begun, Collection] | None) -> None:
        started = self._clock()
        collection = await (self._collector.collect(step) if ahead is None else ahead.take())
        collected = self._clock()
        groups, staleness = within_bound(
            collection.groups,
            version=self._trainer.weight_version,
            bound=self._settings.max_staleness,
        )
        await asyncio.to_thread(self._keep, "train", step, groups)

        def learn(progress: Callable[[float], None], before_update: Callable[[], None]) -> None:
            metrics = self._trainer.step(groups, progress=progress, before_update=before_update)
            self._advance(step=step, late=collection.late)
            row = step_row(
                step,
                metrics,
                groups=groups,
                staleness=staleness,
                collection=collection,
                times=StepTimes(started, collected, self._clock()),
            )
            depth = 0 if ahead is None else ahead.depth
            self._record({**row, "steps_ahead": depth, "spent_s": self.spent_s()})

        await self._train(f"step {step}", learn, sampling_goes_on=ahead is not None)
        if ahead is not None:
            ahead.trained()
        self._step_s = max(self._step_s * 0.8, self._clock() - started)
        if step % self._settings.save_every == 0:
            await self._save()

    async def _train(
        self,
        what: str,
        learn: Callable[[Callable[[float], None], Callable[[], None]], None],
        *,
        sampling_goes_on: bool = False,
    ) -> None:
        """Train in a thread, and hold sampling back while the weights change.

        A cancel stops it before the update, or is too late: then the step is finished and on
        record before the cancel goes on.

        Args:
            what: For the progress.
            learn: Trains, and counts and records the step in the same breath.
            sampling_goes_on: Whether sampling stops only for the update; else for all of it.
        """
        stop, paused = threading.Event(), threading.Event()
        event_loop = asyncio.get_running_loop()

        def progress(share: float) -> None:
            if stop.is_set():
                raise _StoppedError
            self._progress(what, share)

        def before_update() -> None:
            if not paused.is_set():
                asyncio.run_coroutine_threadsafe(self._sync.before(), event_loop).result()
                paused.set()

        if not sampling_goes_on:
            await self._sync.before()
            paused.set()
        await _to_its_end(lambda: learn(progress, before_update), on_cancel=stop.set)
        await asyncio.to_thread(release_freed_memory)
        if paused.is_set():
            await self._sync.after(self._trainer.weight_version)

    def _time_left(self) -> bool:
        """Tell whether one more step and the last evaluation fit the time budget."""
        if self._settings.minutes is None:
            return True
        needed = self._step_s + self._evaluation_s
        return self.spent_s() + needed < self._settings.minutes * 60

    def _advance(self, *, step: int = 0, late: tuple[Late, ...] = ()) -> None:
        """Count what the trainer has just learned."""
        self._state = replace(
            self._state,
            step=step,
            late=late,
            warm_started=True,
            weight_version=self._trainer.weight_version,
        )

    async def _save(self) -> None:
        """Save what has not been saved yet."""
        if self._saved != self._state:
            await _to_its_end(lambda: self._write(self._state))

    def _write(self, state: LoopState) -> None:
        """Write the trainer's state under a new name, then the loop's, which makes it count."""
        path = state.trainer_path(self._state_dir)
        try:
            self._state_dir.mkdir(parents=True, exist_ok=True)
            if self._saved is None or path != self._saved.trainer_path(self._state_dir):
                self._trainer.save_state(path)
            replace(state, spent_s=self.spent_s()).save(self._state_dir / _STATE_FILE)
            for old in self._state_dir.glob("*trainer-*"):
                if old != path:
                    old.unlink()
            self._saved = state
        except RankLost as error:
            raise JournalError(
                f"the state of the last step could not be put together: {error}",
                where=str(self._state_dir),
                fix="Resume from the last saved state; finished sessions are kept.",
            ) from error
        except (OSError, RuntimeError) as error:  # torch tells of a full disk by RuntimeError
            raise JournalError(
                f"the state to resume from could not be written: {error}",
                where=str(self._state_dir),
                fix="Free some space, then resume; finished sessions are kept.",
            ) from error
        self._on_saved(state)


async def _to_its_end(
    work: Callable[[], None], on_cancel: Callable[[], None] = lambda: None
) -> None:
    """Run in a thread; a cancel goes on only when the thread has ended."""
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        on_cancel()
        await asyncio.wait({thread})
        if not thread.cancelled():
            thread.exception()
        raise


def _passed(groups: Sequence[Group]) -> list[Trajectory]:
    good = [t for group in groups for t in group.trajectories if passed(t)]
    if not good:
        raise TrainingError(
            "no session of the expert passed its grader",
            where="warm start",
            fix="Look at one with `polar show warm_start-0000-000-00`.",
        )
    return good


class _StoppedError(Exception):
    """The training thread was asked to stop."""
