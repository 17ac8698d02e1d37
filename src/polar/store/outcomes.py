"""Outcomes as tagged JSON and back."""

from __future__ import annotations

from typing import Any, assert_never

import orjson

from polar.errors import JournalError
from polar.types import Cancelled, Completed, Ended, Failed, Grade, Outcome, TimedOut

__all__ = ["decode_outcome", "encode_outcome"]


def encode_outcome(outcome: Outcome) -> str:
    """Write an outcome as a JSON object whose `kind` says which one it is."""
    return orjson.dumps(_tagged(outcome), default=dict).decode()


def decode_outcome(text: str) -> Outcome:
    """Read what `encode_outcome` wrote.

    Raises:
        JournalError: The kind is not known.
    """
    fields: dict[str, Any] = orjson.loads(text)
    match fields:
        case {"kind": "completed"}:
            grade, cut_off = Grade(**fields["grade"]), fields.get("cut_off")
            return Completed(grade, fields["exit_code"], cut_off)
        case {"kind": "failed"}:
            return Failed(fields["stage"], fields["error"])
        case {"kind": "timed_out"}:
            partial = fields["grade"]
            return TimedOut(fields["stage"], None if partial is None else Grade(**partial))
        case {"kind": "cancelled"}:
            return Cancelled(fields["reason"])
        case {"kind": "ended"}:
            return Ended(fields["exit_code"])
        case _:
            raise JournalError(f"the journal holds an outcome of unknown kind: {text[:80]}")


def _tagged(outcome: Outcome) -> dict[str, Any]:
    match outcome:
        case Completed(grade=grade, exit_code=exit_code, cut_off=cut_off):
            ended = {"exit_code": exit_code, "cut_off": cut_off}
            return {"kind": "completed", "grade": _grade(grade), **ended}
        case Failed(stage=stage, error=error):
            return {"kind": "failed", "stage": stage, "error": error}
        case TimedOut(stage=stage, grade=partial):
            graded = None if partial is None else _grade(partial)
            return {"kind": "timed_out", "stage": stage, "grade": graded}
        case Cancelled(reason=reason):
            return {"kind": "cancelled", "reason": reason}
        case Ended(exit_code=exit_code):
            return {"kind": "ended", "exit_code": exit_code}
        case _:
            assert_never(outcome)


def _grade(grade: Grade) -> dict[str, Any]:
    return {"reward": grade.reward, "passed": grade.passed, "details": dict(grade.details)}
