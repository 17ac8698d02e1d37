"""Recorded sessions as trajectories: from Parquet files, or from the journal of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from polar.cli.run_folder import RunFolder
from polar.errors import ConfigError
from polar.store import read_journal
from polar.trajectory import build, credit, from_table, reward_of
from polar.types import Trajectory

__all__ = ["Wanted", "of_files", "of_run"]

Wanted = Callable[[str], bool]
"""Tells whether the sessions of a phase are wanted."""


def of_run(folder: RunFolder, wanted: Wanted) -> Iterator[Trajectory]:
    """Read the sessions of a run: its Parquet files, or its journal where it wrote none.

    Raises:
        ConfigError: The folder holds no sessions.
    """
    tables = folder.tables()
    if tables:
        return of_files(tables, wanted)
    if not folder.journal.exists():
        raise ConfigError(
            "there are no recorded sessions",
            where=str(folder.path),
            fix="Name the folder of a run, or Parquet files with --data.",
        )
    return _of_journal(folder, wanted)


def of_files(paths: Sequence[Path], wanted: Wanted) -> Iterator[Trajectory]:
    """Read the sessions of Parquet files, one file after the other.

    Raises:
        ConfigError: A file cannot be read as Parquet.
        FidelityError: A file is of another kind or schema version.
    """
    import pyarrow as pa
    from pyarrow import parquet

    for path in paths:
        try:
            table = parquet.read_table(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise ConfigError(
                f"the file cannot be read: {error}",
                where=str(path),
                fix="Name Parquet files that Polar wrote.",
            ) from error
        from_table(table.slice(0, 0))  # of the right version, before a column is looked at
        yield from from_table(_of_phases(table, wanted))


def _of_phases(table: Any, wanted: Wanted) -> Any:
    import pyarrow as pa

    phases = table.column("phase").to_pylist()
    return table.filter(pa.array([wanted(phase) for phase in phases], pa.bool_()))


def _of_journal(folder: RunFolder, wanted: Wanted) -> Iterator[Trajectory]:
    settings = folder.rollout()
    with read_journal(folder.journal) as journal:
        for record in journal.sessions():
            if not wanted(record.phase) or record.outcome is None:
                continue
            if reward_of(record.outcome) is None:  # its traces may be such as cannot be built
                continue
            calls = journal.calls(record.session.id, record.session.attempt)
            built = build(calls, builder=settings.builder, policy=settings.build_policy)
            scores = journal.scores(record.session.id, record.session.attempt)
            found = credit(record.session, built, record.outcome, step_rewards=scores)
            if found is not None:
                yield found
