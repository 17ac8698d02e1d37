"""Faults that nobody foresaw: one ends its session, many in a row end the run."""

from __future__ import annotations

import traceback

from polar.errors import SessionsBroken
from polar.rollout.endings import is_graded
from polar.types import Cancelled, Completed, Ended, Failed, Outcome, SessionId, TimedOut

__all__ = ["FaultStreak", "describe"]


class FaultStreak:
    """Counts the sessions in a row that ended without a grade.

    Args:
        most: So many end the run; absent: it goes on whatever happens.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._length = 0

    def add(self, session_id: SessionId, outcome: Outcome) -> None:
        """Count a session that has used up its attempts.

        Raises:
            SessionsBroken: There were as many in a row as may be.
        """
        self._length = 0 if is_graded(outcome) else self._length + 1
        if self._most is not None and self._length >= self._most:
            raise SessionsBroken(
                f"{self._length} sessions in a row ended without a grade,"
                f" the last one: {_cause(outcome)}",
                where=f"session {session_id}",
                fix="Mend the cause and resume: every graded session is kept. "
                "`rollout.stop_after_failures` sets how many may fail.",
            )


def describe(error: BaseException) -> str:
    """Say in a line what was raised and where."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"unforeseen {type(error).__name__}: {error}{place}; traceback in run.log"


def _cause(outcome: Outcome) -> str:
    match outcome:
        case Failed(stage=stage, error=error):
            return f"failed while {stage}: {error}"
        case TimedOut(stage=stage):
            return f"out of time while {stage}"
        case Cancelled(reason=reason):
            return f"cancelled: {reason}"
        case Completed() | Ended():
            return "it was not graded"
