"""Where tasks come from and where trajectories go."""

from __future__ import annotations

from pathlib import Path

from polar.config import TasksSection
from polar.errors import ConfigError
from polar.evaluators import check_tasks
from polar.tasks import generate, read_tasks
from polar.types import Group, Task

__all__ = ["load_tasks", "write_trajectories"]


def load_tasks(section: TasksSection, *, seed: int) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Read or generate the tasks to train on and the held-out ones."""
    if section.family is not None:
        return (
            generate(seed=seed, split="train", count=section.train_count),
            generate(seed=section.heldout_seed, split="heldout", count=section.heldout_count),
        )
    if section.train is None:
        raise ConfigError(
            "there are no tasks to train on",
            where="tasks",
            fix="Set tasks.train to a task file, or tasks.family to a generated family.",
        )
    heldout = read_tasks(section.heldout) if section.heldout is not None else ()
    train = read_tasks(section.train)
    check_tasks((*train, *heldout))
    return train, heldout


def write_trajectories(run_dir: Path, phase: str, step: int, groups: tuple[Group, ...]) -> None:
    """Write a collection's trajectories as Parquet, atomically."""
    from pyarrow import parquet

    from polar.trajectory import to_table

    folder = run_dir / "trajectories"
    folder.mkdir(exist_ok=True)
    name = f"step-{step:05d}" if phase == "train" else phase
    table = to_table(
        [trajectory for group in groups for trajectory in group.trajectories],
        phase=phase,
        step=step,
    )
    temporary = folder / f".{name}.tmp"
    parquet.write_table(table, temporary)
    temporary.replace(folder / f"{name}.parquet")
