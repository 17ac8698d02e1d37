"""Where tasks come from and where trajectories go."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from polar.config import TasksSection
from polar.errors import ConfigError, JournalError
from polar.evaluators import check_tasks
from polar.tasks import generate, read_tasks
from polar.types import Group, Task

if TYPE_CHECKING:
    from polar.train import Trainer

__all__ = ["claimed", "load_tasks", "write_checkpoint", "write_trajectories"]

_TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)


@contextmanager
def claimed(run_dir: Path) -> Iterator[None]:
    """Make a run folder, and keep other processes out of it until the context is left.

    Raises:
        ConfigError: It cannot be made, or another process runs in it.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = (run_dir / ".lock").open("w")
    except OSError as error:
        raise ConfigError(
            f"the run folder cannot be made: {error}",
            where=str(run_dir),
            fix="Name a folder that you may write to.",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                "another process is running in the run folder",
                where=str(run_dir),
                fix="Wait for it or end it, or name another folder.",
            ) from error
        yield


def load_tasks(section: TasksSection, *, seed: int) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Read or generate the tasks to train on and the held-out ones."""
    if section.family is not None:
        return (
            generate(seed=seed, split="train", count=section.train_count, family=section.family),
            generate(
                seed=section.heldout_seed,
                split="heldout",
                count=section.heldout_count,
                family=section.family,
            ),
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


def write_checkpoint(trainer: Trainer, model_dir: Path, path: Path) -> None:
    """Write weights and tokenizer as a folder that a later run can name as its model.

    Raises:
        JournalError: It cannot be written.
    """
    tokenizer = [file for pattern in _TOKENIZER_FILES for file in model_dir.glob(pattern)]
    try:
        trainer.save(path, beside=[file for file in tokenizer if file.is_file()])
    except OSError as error:
        raise JournalError(
            f"the checkpoint cannot be written: {error}",
            where=str(path),
            fix="Check free space and permissions there.",
        ) from error


def write_trajectories(run_dir: Path, phase: str, step: int, groups: tuple[Group, ...]) -> None:
    """Write a collection's trajectories as Parquet, atomically.

    Raises:
        JournalError: They cannot be written.
    """
    from pyarrow import parquet

    from polar.trajectory import to_table

    folder = run_dir / "trajectories"
    kinds = {"train": "step", "heldout": "heldout", "run": "run"}
    name = f"{kinds[phase]}-{step:05d}" if phase in kinds else phase
    table = to_table(
        [trajectory for group in groups for trajectory in group.trajectories],
        phase=phase,
        step=step,
    )
    temporary = folder / f".{name}.tmp"
    try:
        folder.mkdir(exist_ok=True)
        parquet.write_table(table, temporary)
        temporary.replace(folder / f"{name}.parquet")
    except OSError as error:
        raise JournalError(
            f"the trajectories cannot be written: {error}",
            where=str(folder),
            fix="Check free space and permissions there, then resume.",
        ) from error
