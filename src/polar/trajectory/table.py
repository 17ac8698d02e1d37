"""Trajectories as an Arrow table of a documented, versioned schema, and back.

One row a trace, in order; a trajectory without traces is one row whose trace columns are null.

    session_id, task_id, group_id   string
    reward                          float64
    outcome                         string: completed, failed, timed_out, cancelled
    outcome_json                    string: the outcome's fields
    phase                           string: what the session was for, given by the caller
    step                            int32, null outside training
    trace_index                     int32, from 0 within the session
    token_ids                       list<int32>
    loss_mask                       list<bool>, true where the token was sampled and trains
    logprobs                        list<float32>, 0 where loss_mask is false
    weight_versions                 list<int32>, -1 where loss_mask is false
    call_ids                        list<string>, the calls whose tokens this trace trains
    call_tokens                     list<int32>, how many tokens each of them has here
    call_indices                    list<int32>, where each stands in the session's order of arrival
    step_rewards                    list<double>, the score of each, null where it has none
    divergences                     int32, calls trained in another context than the engine saw
    report_json                     string: the session's account of sampled tokens
    capture                         string: how the session's tokens are known

The schema's metadata holds `polar.trajectories` -> version. Version 3 had no `capture`: all tokens
were of the surest kind. Version 2 had returns in place of scores (`call_rewards`), and neither
`call_tokens` nor `call_indices`; version 1 no `divergences` either. All are read; what they do not
hold stays unknown, and the scores are in the journal.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from polar.errors import FidelityError
from polar.types import (
    BuildReport,
    CallId,
    Cancelled,
    Completed,
    Ended,
    Failed,
    Grade,
    Outcome,
    SessionId,
    TaskId,
    TimedOut,
    Trace,
    Trajectory,
)

__all__ = ["SCHEMA", "SCHEMA_VERSION", "from_table", "schema_version", "to_table"]

SCHEMA_VERSION = 4

_VERSION_KEY = b"polar.trajectories"
_READ_VERSIONS = (1, 2, 3, SCHEMA_VERSION)


def _list(of: pa.DataType) -> pa.DataType:
    """A list type as it comes back from a Parquet file, which names the items `element`."""
    return pa.list_(pa.field("element", of))


SCHEMA = pa.schema(
    [
        ("session_id", pa.string()),
        ("task_id", pa.string()),
        ("group_id", pa.string()),
        ("reward", pa.float64()),
        ("outcome", pa.string()),
        ("outcome_json", pa.string()),
        ("phase", pa.string()),
        ("step", pa.int32()),
        ("trace_index", pa.int32()),
        ("token_ids", _list(pa.int32())),
        ("loss_mask", _list(pa.bool_())),
        ("logprobs", _list(pa.float32())),
        ("weight_versions", _list(pa.int32())),
        ("call_ids", _list(pa.string())),
        ("call_tokens", _list(pa.int32())),
        ("call_indices", _list(pa.int32())),
        ("step_rewards", _list(pa.float64())),
        ("divergences", pa.int32()),
        ("report_json", pa.string()),
        ("capture", pa.string()),
    ],
    metadata={_VERSION_KEY: str(SCHEMA_VERSION).encode()},
)


def to_table(
    trajectories: Iterable[Trajectory], *, phase: str, step: int | None = None
) -> pa.Table:
    """Lay out trajectories as rows.

    Args:
        trajectories: One for each session.
        phase: What the sessions were for: `train`, `heldout_before`, `rollout`, ...
        step: The training step they were collected for.
    """
    rows = [row for trajectory in trajectories for row in _rows(trajectory, phase=phase, step=step)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def from_table(table: pa.Table) -> tuple[Trajectory, ...]:
    """Read trajectories back, exactly; `phase` and `step` stay columns of the table.

    Raises:
        FidelityError: The table is of another kind or of a later schema version, or is damaged.
    """
    try:
        table = _in_present_form(table)
        columns = [table.column(name) for name in (*_SESSION_COLUMNS, "step_rewards")]
        rows = zip(*columns, _traces(table), strict=True)
        sessions = itertools.groupby(rows, key=lambda row: row[0].as_py())
        return tuple(_trajectory(list(group)) for _, group in sessions)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FidelityError(
            f"the table is damaged: {type(error).__name__}: {error}",
            fix="Restore the file, or collect the sessions again.",
        ) from error


def schema_version(table: pa.Table) -> int:
    """Tell which version of the schema a table has.

    Raises:
        FidelityError: It is of another kind or of a later version.
    """
    told = (table.schema.metadata or {}).get(_VERSION_KEY, b"none").decode(errors="replace")
    found = next((version for version in _READ_VERSIONS if told == str(version)), None)
    if found is None:
        raise FidelityError(
            f"the table has trajectory schema version {told}, this release reads"
            f" {', '.join(map(str, _READ_VERSIONS))}",
            fix="Read it with the release that wrote it.",
        )
    return found


def _in_present_form(table: pa.Table) -> pa.Table:
    """Add the columns that tables of earlier versions lack; in rows of traces they are empty."""
    if schema_version(table) == SCHEMA_VERSION:
        return table
    rows = table.column("call_ids").to_pylist()
    columns: dict[str, list[Any]] = {
        "call_tokens": [None if calls is None else [] for calls in rows],
        "call_indices": [None if calls is None else [] for calls in rows],
        "step_rewards": [None if calls is None else [None] * len(calls) for calls in rows],
        "divergences": [None if calls is None else 0 for calls in rows],
        "capture": ["tokens"] * len(rows),
    }
    for name, values in columns.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.array(values, SCHEMA.field(name).type))
    return table


_SESSION_COLUMNS = (
    "session_id",
    "task_id",
    "group_id",
    "reward",
    "outcome",
    "outcome_json",
    "report_json",
    "capture",
)


def _rows(trajectory: Trajectory, *, phase: str, step: int | None) -> Iterable[dict[str, Any]]:
    session = {
        "session_id": trajectory.session_id,
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        "reward": trajectory.reward,
        "outcome": _outcome_tag(trajectory.outcome),
        "outcome_json": _to_json(dataclasses.asdict(_plain(trajectory.outcome))),
        "phase": phase,
        "step": step,
        "report_json": _to_json(_report_fields(trajectory.report)),
        "capture": trajectory.report.capture,
    }
    if not trajectory.traces:
        yield session
    for index, trace in enumerate(trajectory.traces):
        yield session | {
            "trace_index": index,
            "token_ids": trace.token_ids,
            "loss_mask": trace.loss_mask,
            "logprobs": trace.logprobs,
            "weight_versions": trace.weight_versions,
            "call_ids": list(trace.call_ids),
            "call_tokens": list(trace.call_tokens),
            "call_indices": list(trace.call_indices),
            "step_rewards": [trajectory.step_rewards.get(c) for c in trace.call_ids],
            "divergences": trace.divergences,
        }


def _traces(table: pa.Table) -> Iterable[Trace | None]:
    def array(name: str, row: int, dtype: type[np.generic]) -> Any:
        values = table.column(name)[row].values
        return values.to_numpy(zero_copy_only=False).astype(dtype)

    for row in range(table.num_rows):
        if not table.column("token_ids")[row].is_valid:
            yield None
            continue
        yield Trace(
            token_ids=array("token_ids", row, np.int32),
            loss_mask=array("loss_mask", row, np.bool_),
            logprobs=array("logprobs", row, np.float32),
            weight_versions=array("weight_versions", row, np.int32),
            call_ids=tuple(CallId(item) for item in table.column("call_ids")[row].as_py()),
            divergences=table.column("divergences")[row].as_py(),
            call_tokens=tuple(table.column("call_tokens")[row].as_py()),
            call_indices=tuple(table.column("call_indices")[row].as_py()),
        )


def _trajectory(rows: list[tuple[Any, ...]]) -> Trajectory:
    session_id, task_id, group_id, reward, tag, outcome, report, capture = (
        scalar.as_py() for scalar in rows[0][:-2]
    )
    return Trajectory(
        session_id=SessionId(session_id),
        task_id=TaskId(task_id),
        group_id=group_id,
        traces=tuple(row[-1] for row in rows if row[-1] is not None),
        reward=reward,
        outcome=_outcome(tag, json.loads(outcome)),
        report=_report(json.loads(report) | {"capture": capture}),
        step_rewards=MappingProxyType(_read_step_rewards(rows)),
    )


def _read_step_rewards(rows: list[tuple[Any, ...]]) -> dict[CallId, float]:
    return {
        call_id: reward
        for *_, rewards, trace in rows
        if trace is not None
        for call_id, reward in zip(trace.call_ids, rewards.as_py(), strict=True)
        if reward is not None
    }


def _outcome_tag(outcome: Outcome) -> str:
    match outcome:
        case Completed():
            return "completed"
        case Failed():
            return "failed"
        case TimedOut():
            return "timed_out"
        case Cancelled():
            return "cancelled"
        case Ended():
            return "ended"
        case _:
            assert_never(outcome)


def _outcome(tag: str, fields: dict[str, Any]) -> Outcome:
    grade = fields.pop("grade", None)
    if grade is not None:
        grade = Grade(**grade)
    match tag:
        case "completed":
            return Completed(grade=grade, **fields)
        case "failed":
            return Failed(**fields)
        case "timed_out":
            return TimedOut(grade=grade, **fields)
        case "cancelled":
            return Cancelled(**fields)
        case "ended":
            return Ended(**fields)
        case _:
            raise FidelityError(f"the table has an unknown outcome {tag!r}")


def _plain(outcome: Outcome) -> Outcome:
    """Make the grade's details a plain dict, which `dataclasses.asdict` can copy."""
    match outcome:
        case Completed(grade=Grade() as grade) | TimedOut(grade=Grade() as grade):
            plain = dataclasses.replace(grade, details=dict(grade.details))
            return dataclasses.replace(outcome, grade=plain)
        case _:
            return outcome


def _report_fields(report: BuildReport) -> dict[str, Any]:
    plain = dataclasses.replace(report, dropped=dict(report.dropped), forks=dict(report.forks))
    fields = dataclasses.asdict(plain)
    del fields["capture"]  # a column of its own
    return fields


def _report(fields: dict[str, Any]) -> BuildReport:
    dropped = MappingProxyType(fields.pop("dropped"))
    forks = MappingProxyType(fields.pop("forks"))
    return BuildReport(dropped=dropped, forks=forks, **fields)


def _to_json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, ensure_ascii=False, default=str)
