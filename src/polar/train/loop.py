"""The training loop: collect groups, train on them, give the engine the new weights, measure."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from polar.errors import ConfigError, TrainingError
from polar.train.figures import figures_of, passed
from polar.train.loop_settings import LoopSettings
from polar.train.trainer import Trainer
from polar.types import Group, Task

__all__ = [
    "Collect",
    "Evaluation",
    "LoopState",
    "TrainingLoop",
    "WeightSync",
    "wilson_interval",
]


_T = TypeVar("_T")


class Collect(Protocol):
    """Runs sessions: every task `samples` times; groups in the order of the tasks."""

    def __call__(
        self, tasks: Sequence[Task], *, samples: int, phase: str, step: int
    ) -> Awaitable[tuple[Group, ...]]:
        """Start collecting."""
        ...


class WeightSync(Protocol):
    """Hands the trainer's weights to whatever samples."""

    async def before(self) -> None:
        """Stop sampling: the weights are about to change."""
        ...

    async def after(self, version: int) -> None:
        """Serve the new weights and go on sampling."""
        ...


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out pass@1 with its 95% interval (Wilson score, one session a task)."""

    passed: int
    sessions: int
    pass_at_1: float
    low: float
    high: float
    rollout_s: float


@dataclass(frozen=True, slots=True)
class LoopState:
    """What a resumed run needs to know besides the trainer's own state."""

    step: int
    """Finished steps."""
    warm_started: bool
    before: Evaluation | None
    spent_s: float
    """Wall time of earlier processes of this run."""

    def save(self, path: Path) -> None:
        """Write atomically."""
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"version": 1, **asdict(self)}, indent=1))
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path) -> LoopState:
        """Read a saved state.

        Raises:
            ConfigError: It is missing or of another version.
        """
        try:
            raw = json.loads(path.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise ConfigError(
                f"the run has no state to resume from: {error}",
                where=str(path),
                fix="Start a new run, or name another run folder.",
            ) from error
        if raw.pop("version", None) != 1:
            raise ConfigError(
                "the run's state was written by another version of Polar", where=str(path)
            )
        before = raw.pop("before")
        return cls(before=Evaluation(**before) if before else None, **raw)


def wilson_interval(passed: int, total: int) -> tuple[float, float]:
    """Compute the 95% Wilson score interval of a proportion.

    Source: E. B. Wilson, 1927, J. Am. Stat. Assoc. 22, 209.
    """
    if total == 0:
        return 0.0, 1.0
    z = 1.959964
    share = passed / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total**2)) / (1 + z * z / total)
    return max(0.0, centre - half), min(1.0, centre + half)


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
        record: Called with each metrics row; the caller writes and shows it.
        keep: Called with each collection's groups, to write the trajectories.
        progress: Called with what is being done and the done share of it.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trainer = trainer
        self._collect = collect
        self._collect_expert = collect_expert
        self._sync = sync
        self._train_tasks = tuple(train_tasks)
        self._heldout_tasks = tuple(heldout_tasks[: settings.heldout_sessions])
        self._settings = settings
        self._seed = seed
        self._state_dir = state_dir
        self._record = record
        self._keep = keep
        self._progress = progress
        self._clock = clock
        self._state = LoopState(step=0, warm_started=False, before=None, spent_s=0.0)
        self._saved: LoopState | None = None
        self._started = clock()
        self._evaluation_s = 0.0
        self._step_s = 0.0

    @property
    def state(self) -> LoopState:
        """How far the run is."""
        return self._state

    def resume(self) -> None:
        """Continue from the saved state of an earlier process."""
        self._state = LoopState.load(self._state_dir / "loop.json")
        self._trainer.load_state(self._state_dir / "trainer")
        self._saved = self._state

    async def run(self) -> tuple[Evaluation | None, Evaluation | None]:
        """Run to the end and return the held-out evaluations before and after.

        On cancellation the state of the last finished step is saved before it propagates.
        """
        try:
            await self._sync.before()
            await self._sync.after(self._trainer.weight_version)
            if not self._state.warm_started:
                await self._warm_start()
            if self._state.before is None and self._heldout_tasks:
                self._move(before=await self._evaluate("heldout_before"))
            while self._state.step < self._settings.steps and self._time_left():
                await self._step(self._state.step + 1)
            after = await self._evaluate("heldout_after") if self._heldout_tasks else None
            return self._state.before, after
        finally:
            self._save()

    def spent_s(self) -> float:
        """Wall seconds of this run, over all its processes."""
        return self._state.spent_s + self._clock() - self._started

    async def _warm_start(self) -> None:
        wanted = self._settings.warm_start
        if wanted.sessions:
            tasks = self._draw(wanted.sessions, random.Random(f"{self._seed}/warm"))
            started = self._clock()
            groups = await self._collect_expert(tasks, samples=1, phase="warm_start", step=0)
            self._keep("warm_start", 0, groups)
            collected = self._clock()
            good = [t for group in groups for t in group.trajectories if passed(t)]
            if not good:
                raise TrainingError(
                    "no session of the expert passed its grader",
                    where="warm start",
                    fix="Look at one with `polar show warm_start-0000-000-00`.",
                )
            metrics = await self._train(
                "warm start",
                lambda progress: self._trainer.supervised(
                    good,
                    epochs=wanted.epochs,
                    batch_sessions=wanted.batch_sessions,
                    lr=wanted.lr,
                    progress=progress,
                ),
            )
            self._record(
                {
                    "phase": "warm_start",
                    "step": 0,
                    **asdict(figures_of(groups)),
                    "rollout_s": collected - started,
                    "train_s": self._clock() - collected,
                    **asdict(metrics),
                }
            )
        self._move(warm_started=True)

    async def _evaluate(self, phase: str) -> Evaluation:
        started = self._clock()
        groups = await self._collect(
            self._heldout_tasks, samples=1, phase=phase, step=self._state.step
        )
        self._evaluation_s = self._clock() - started
        self._keep(phase, self._state.step, groups)
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
        self._record({"phase": phase, "step": self._state.step, **asdict(figures), **asdict(found)})
        return found

    async def _step(self, step: int) -> None:
        started = self._clock()
        groups = await self._collect(
            self._tasks_of(step), samples=self._settings.group_size, phase="train", step=step
        )
        collected = self._clock()
        self._keep("train", step, groups)
        metrics = await self._train(
            f"step {step}", lambda progress: self._trainer.step(groups, progress=progress)
        )
        ended = self._clock()
        self._step_s = max(self._step_s * 0.8, ended - started)
        self._move(step=step)
        self._record(
            {
                **asdict(metrics),
                "phase": "train",
                "step": step,
                **asdict(figures_of(groups)),
                "rollout_s": collected - started,
                "train_s": ended - collected,
                "spent_s": self.spent_s(),
            }
        )
        if step % self._settings.save_every == 0:
            self._save()

    async def _train(self, what: str, work: Callable[[Callable[[float], None]], _T]) -> _T:
        """Train in a thread while the engine is paused; a cancel stops it before the update."""
        stop = threading.Event()

        def progress(share: float) -> None:
            if stop.is_set():
                raise _StoppedError
            self._progress(what, share)

        await self._sync.before()
        thread = asyncio.ensure_future(asyncio.to_thread(work, progress))
        try:
            result = await asyncio.shield(thread)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({thread})
            if not thread.cancelled():
                thread.exception()
            raise
        await self._sync.after(self._trainer.weight_version)
        return result

    def _tasks_of(self, step: int) -> tuple[Task, ...]:
        """Choose a step's tasks: seeded passes over all tasks, none twice in a pass."""
        per_pass = max(1, len(self._train_tasks) // self._settings.tasks_per_step)
        turn, offset = divmod(step - 1, per_pass)
        order = self._draw(len(self._train_tasks), random.Random(f"{self._seed}/{turn}"))
        start = offset * self._settings.tasks_per_step
        return order[start : start + self._settings.tasks_per_step]

    def _draw(self, count: int, rng: random.Random) -> tuple[Task, ...]:
        return tuple(rng.sample(self._train_tasks, min(count, len(self._train_tasks))))

    def _time_left(self) -> bool:
        """Tell whether one more step and the last evaluation fit the time budget."""
        if self._settings.minutes is None:
            return True
        needed = self._step_s + self._evaluation_s
        return self.spent_s() + needed < self._settings.minutes * 60

    def _move(self, **changes: object) -> None:
        self._state = LoopState(
            **{
                "step": self._state.step,
                "warm_started": self._state.warm_started,
                "before": self._state.before,
                "spent_s": self._state.spent_s,
                **changes,
            }  # type: ignore[arg-type]
        )

    def _save(self) -> None:
        """Save what has not been saved: trainer first, so that the loop never runs ahead of it."""
        if self._saved == self._state:
            return
        self._state_dir.mkdir(parents=True, exist_ok=True)
        self._trainer.save_state(self._state_dir / "trainer")
        spent = LoopState(
            self._state.step, self._state.warm_started, self._state.before, self.spent_s()
        )
        spent.save(self._state_dir / "loop.json")
        self._saved = self._state


class _StoppedError(Exception):
    """The training thread was asked to stop."""
