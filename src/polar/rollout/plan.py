"""What a rollout is asked to do, and what it tells while it does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from polar.types import SessionId, Task, Trajectory

__all__ = ["Plan", "SessionEvent"]


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
