"""`polar verify RUN`: checks that what trained is exactly what the engine saw and sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from polar.cli.console import console, errors, plain
from polar.cli.engine_counts import engine_counts
from polar.cli.run_folder import RunFolder, chosen_run
from polar.config import environment
from polar.engines import read_tape
from polar.errors import FidelityError, PolarError
from polar.rollout.settings import RolloutSettings
from polar.store import JournalReader, read_journal
from polar.trajectory import (
    SCHEMA_VERSION,
    Built,
    FidelityReport,
    TapeRecord,
    build,
    check,
    check_tape,
    from_table,
    schema_version,
)
from polar.types import Call, Cancelled, Failed, SessionId, Trace, Trajectory

__all__ = ["Verification", "verify", "verify_run"]

_SHOWN = 20
_SCRIPTED_PHASES = frozenset({"warm_start"})
"""Phases whose calls a scripted expert answered, which has a tape of its own."""


@dataclass(slots=True)
class Verification:
    """What was compared, and every violation that was found."""

    counts: Counter[str] = field(default_factory=Counter)
    """What -> how many were compared and found equal."""
    violations: list[str] = field(default_factory=list)
    """One line each."""
    unchecked: Counter[str] = field(default_factory=Counter)
    """What -> how many nobody can check."""


def verify(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder; the newest in ./runs, else of `polar run`.")
    ] = None,
    run_flag: Annotated[Path | None, typer.Option("--run", help="The same as RUN.")] = None,
) -> None:
    """Check every token of a run, from three records of it that were made apart.

    Each attempt of each session is rebuilt from the journal's calls and checked token by token;
    the Parquet rows that were trained on must be equal to it; and the calls must be those on the
    tape that was recorded at the engine, none missing, none invented.

    What nobody can check is said: a call of which only the text is known has no tokens, and in a
    recorded one the prompt is what the engine's server says that it was.

    Exits with 8 if anything is violated.

    Examples:
        polar verify

        polar verify runs/demo
    """
    folder = chosen_run(run, run_flag, data=environment().data)
    found = verify_run(folder)
    _print(folder, found)
    if found.violations:
        raise typer.Exit(FidelityError.exit_code)


def verify_run(folder: RunFolder) -> Verification:
    """Compare a run's journal, trajectories and engine tape.

    Raises:
        JournalError: There is no journal in the folder, or it cannot be read.
        ConfigError: The run's config cannot be read.
    """
    found = Verification()
    settings = folder.rollout()
    with read_journal(folder.journal) as journal:
        attempts = _rebuilt(journal, settings, found)
        sampled, scripted = _calls(journal, scripted=False), _calls(journal, scripted=True)
        whole = _whole_attempts(journal)
    for path in folder.tables():
        _compare_table(path, attempts, found)
    _compare_tapes(folder.tapes() or (folder.tape,), sampled, whole, found)
    if scripted:
        _compare_tapes((folder.expert_tape,), scripted, whole, found)
    return found


def _rebuilt(
    journal: JournalReader, settings: RolloutSettings, found: Verification
) -> Mapping[SessionId, Sequence[Built | None]]:
    """Rebuild and check every attempt of every session; one that cannot be is None."""
    rebuilt: dict[SessionId, list[Built | None]] = {}
    for record in journal.sessions():
        session = record.session
        found.counts["sessions"] += 1
        builds = rebuilt.setdefault(session.id, [])
        for attempt in range(session.attempt + 1):
            calls = journal.calls(session.id, attempt)
            try:
                built = build(calls, builder=settings.builder, policy=settings.build_policy)
                report = check(calls, built)
            except Exception as error:  # whatever it is, the other sessions are to be checked
                found.violations.append(f"{session.id}, attempt {attempt}: {_told(error)}")
                builds.append(None)
                continue
            builds.append(built)
            _count(found, report, calls)
            found.counts.update(engine_counts([built.report]))
    return rebuilt


def _count(found: Verification, report: FidelityReport, calls: Sequence[Call]) -> None:
    """Add what was found equal in one attempt, and what nobody can check there."""
    ways = Counter(call.capture for call in calls)
    found.counts["attempts"] += 1
    found.counts["calls"] += report.calls - ways["text"]
    found.counts["traces"] += report.traces
    found.counts["sampled tokens"] += report.sampled
    found.counts["tokens kept"] += report.kept
    found.counts["tokens dropped, each for a counted reason"] += report.sampled - report.kept
    found.counts["context tokens compared"] += report.context
    found.unchecked["calls of which only the text is known"] += ways["text"]
    found.unchecked["prompts that are known only as their server told them"] += ways["recorded"]


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, PolarError) else f"{type(error).__name__}: {error}"


def _calls(journal: JournalReader, *, scripted: bool) -> list[Call]:
    return [
        call
        for record in journal.sessions()
        if (record.phase in _SCRIPTED_PHASES) is scripted
        for attempt in range(record.session.attempt + 1)
        for call in journal.calls(record.session.id, attempt)
    ]


def _whole_attempts(journal: JournalReader) -> frozenset[tuple[str, int]]:
    """Name the attempts that came to their end: all that they sampled must be in calls."""
    return frozenset(
        (record.session.id, record.session.attempt)
        for record in journal.sessions()
        if not isinstance(record.outcome, Failed | Cancelled | None)
    )


def _compare_table(
    path: Path, attempts: Mapping[SessionId, Sequence[Built | None]], found: Verification
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
        trajectories, present = from_table(table), schema_version(table) == SCHEMA_VERSION
    except (FidelityError, pa.ArrowException, OSError) as error:
        found.violations.append(f"{path.name}: {error}")
        return
    for trajectory in trajectories:
        builds = attempts.get(trajectory.session_id, ())
        if None in builds and not trajectory.traces:
            continue  # it trained nothing, and what is wrong with it has been said
        if any(built and _is_of(trajectory, built, present=present) for built in builds):
            found.counts["trajectories equal to the rebuilt ones"] += 1
        else:
            found.violations.append(
                f"{path.name}: {trajectory.session_id} is not what its calls in the journal give"
            )


def _is_of(trajectory: Trajectory, built: Built, *, present: bool) -> bool:
    """Compare with what was built anew; files of earlier versions do not hold all of it."""
    told, report = trajectory.report, built.report
    if not present:
        report = replace(report, divergences=told.divergences, cut_replies=told.cut_replies)
    return told == report and _all_equal(trajectory.traces, built.traces, present=present)


def _all_equal(stored: Sequence[Trace], rebuilt: Sequence[Trace], *, present: bool) -> bool:
    return len(stored) == len(rebuilt) and all(
        one.call_ids == other.call_ids
        and np.array_equal(one.token_ids, other.token_ids)
        and np.array_equal(one.loss_mask, other.loss_mask)
        and np.array_equal(one.logprobs, other.logprobs)
        and np.array_equal(one.weight_versions, other.weight_versions)
        and (not present or _calls_of(one) == _calls_of(other))
        for one, other in zip(stored, rebuilt, strict=True)
    )


def _calls_of(trace: Trace) -> tuple[object, ...]:
    """Give what a trace says of its calls besides their ids."""
    return trace.call_tokens, trace.call_indices, trace.divergences


def _compare_tapes(
    tapes: Sequence[Path],
    calls: Sequence[Call],
    whole: Set[tuple[str, int]],
    found: Verification,
) -> None:
    """Compare calls with the tapes of all processes that sampled them, taken together.

    What a process had just sampled when it was killed may be in no call, if the attempt ended with
    it: nothing of it was given to the harness or trained on.
    """
    names = ", ".join(tape.name for tape in tapes)
    missing = [tape.name for tape in tapes if not tape.is_file()]
    if missing and calls:
        found.violations.append(f"{missing[0]} is missing: the engine's view is not known")
    if missing:
        return  # nothing was asked of the engine
    records = [
        TapeRecord(
            *(entry.prompt_sha256, entry.prompt_tokens, entry.token_ids, entry.logprobs),
            may_be_lost=not entry.closed and (entry.session_id, entry.attempt) not in whole,
        )
        for tape in tapes
        for entry in read_tape(tape)
    ]
    try:
        lost = check_tape(calls, records)
    except FidelityError as error:
        found.violations.append(f"{names}: {error}")
        return
    found.counts["requests on the engine's tape, each a call"] += (
        sum(len(record.token_ids) > 0 for record in records) - lost
    )
    if lost:
        found.counts["requests of sessions that a killed process broke off, in no call"] += lost


def _print(folder: RunFolder, found: Verification) -> None:
    table = Table(title=f"{plain(folder.path)}: checked and equal", title_justify="left", box=None)
    table.add_column("what")
    table.add_column("number", justify="right")
    for what, number in found.counts.items():
        table.add_row(what, f"{number:,}")
    console.print(table)
    for what, number in found.unchecked.items():
        if number:
            console.print(Text(f"not checked: {number:,} {what}", "warn"), soft_wrap=True)
    for violation in found.violations[:_SHOWN]:
        errors.print(Text.assemble(("violation: ", "fail"), violation), soft_wrap=True)
    if len(found.violations) > _SHOWN:
        errors.print(f"and {len(found.violations) - _SHOWN} more")
    if found.violations:
        console.print(Text(f"{len(found.violations)} violations", "fail"))
    else:
        rest = " in what could be checked" if found.unchecked.total() else ""
        console.print(Text(f"no violation{rest}", "ok"))
