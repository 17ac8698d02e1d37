"""Shows what a run is doing: sessions by stage, training progress, one line a step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from polar.rollout import SessionEvent
from polar.types import Group, Task

__all__ = ["LiveView"]

_STAGES = ("preparing", "ready", "running", "grading")
_QUIET_INTERVAL_S = 15.0


class LiveView:
    """A progress display on a terminal; on anything else, a line every 15 seconds.

    Use as a context manager around the run.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._collections: dict[str, _Collection] = {}
        self._last_line = 0.0
        self._bar = self._progress.add_task("starting", total=None, text="")

    def __enter__(self) -> LiveView:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self._console.print(line, highlight=False, soft_wrap=True)

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Show that something without a measure of progress is being done."""
        self._progress.reset(self._bar, description=what, total=None, text="")
        started = time.monotonic()
        yield
        self.say(f"[green]✓[/green] {what} [dim]({time.monotonic() - started:.1f} s)[/dim]")

    def shown(
        self, collect: Callable[..., Coroutine[Any, Any, tuple[Group, ...]]]
    ) -> Callable[..., Coroutine[Any, Any, tuple[Group, ...]]]:
        """Wrap a collection so that its sessions are shown while it runs."""

        async def shown(
            tasks: Sequence[Task], *, samples: int, phase: str, step: int, **options: Any
        ) -> tuple[Group, ...]:
            what = f"step {step}, rollout" if phase == "train" else f"{phase}, rollout"
            name = f"{phase}-{step:04d}"
            self._collections[name] = _Collection(what, len(tasks) * samples)
            try:
                return await collect(tasks, samples=samples, phase=phase, step=step, **options)
            finally:
                self._collections.pop(name, None)

        return shown

    def session(self, event: SessionEvent) -> None:
        """Show a session's change of stage, in the oldest of the collections that go on."""
        if (collection := self._collections.get(event.session_id.rsplit("-", 2)[0])) is not None:
            collection.count(event)
            self._show(next(iter(self._collections.values())))

    def training(self, what: str, share: float) -> None:
        """Show how far the training of a step is."""
        self._progress.update(
            self._bar,
            description=f"training, {what}",
            total=1.0,
            completed=share,
            text=f"{share:.0%}",
        )

    def step(self, row: Mapping[str, object], *, steps: int) -> None:
        """Print the line of a finished step."""
        gap = row["logprob_gap_mean"]
        difference = "none sampled by these weights" if gap is None else f"{gap:.1e}"
        self.say(
            f"step [bold]{row['step']:>3}[/bold]/{steps}"
            f"  reward [bold cyan]{row['reward_mean']:.3f}[/bold cyan]"
            f"  pass {row['pass_rate']:.0%}"
            f"  sampled {row['sampled_tokens']:,} tok"
            f"  kept {row['kept_share']:.1%}"
            f"  rollout {row['rollout_s']:.1f} s"
            f"  train {row['train_s']:.1f} s"
            f"  |Δlogprob| {difference}"
        )

    def _show(self, collection: _Collection) -> None:
        what, text = collection.what, collection.text()
        self._progress.update(
            self._bar,
            description=what,
            total=collection.sessions,
            completed=collection.ended,
            text=text,
        )
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last_line > _QUIET_INTERVAL_S:
            self._last_line = now
            self._console.print(f"  {what}: {text}", highlight=False, soft_wrap=True)


class _Collection:
    """What became of the sessions of a collection so far."""

    def __init__(self, what: str, sessions: int) -> None:
        self.what = what
        self.sessions = sessions
        self._stages: Counter[str] = Counter()
        self._stage_of: dict[str, str] = {}
        self._tokens = 0
        self._rewards = 0.0
        self._started = time.monotonic()

    @property
    def ended(self) -> int:
        return sum(self._stages[state] for state in ("completed", "failed", "timed_out"))

    def count(self, event: SessionEvent) -> None:
        before = self._stage_of.get(event.session_id)
        if before is not None:
            self._stages[before] -= 1
        self._stage_of[event.session_id] = event.state
        self._stages[event.state] += 1
        if event.trajectory is not None:
            self._tokens += event.trajectory.report.sampled
            self._rewards += event.trajectory.reward

    def text(self) -> str:
        rate = self._tokens / max(1e-6, time.monotonic() - self._started)
        stages = " ".join(f"{stage} {self._stages[stage]}" for stage in _STAGES)
        mean = self._rewards / max(1, self.ended)
        return f"{self.ended} done · {stages} · {rate:.0f} tok/s · reward {mean:.2f}"
