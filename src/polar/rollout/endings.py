"""What the outcome of a session says about it."""

from __future__ import annotations

from typing import Literal, assert_never

from polar.types import Cancelled, Completed, Ended, Failed, Grade, Outcome, TimedOut

__all__ = ["is_graded", "reward_of", "state_of"]


def reward_of(outcome: Outcome) -> float:
    """Read the reward of an outcome; what was never graded has earned nothing."""
    match outcome:
        case Completed(grade=grade) | TimedOut(grade=Grade() as grade):
            return grade.reward
        case TimedOut() | Failed() | Cancelled() | Ended():
            return 0.0
        case _:
            assert_never(outcome)


def state_of(outcome: Outcome) -> Literal["completed", "failed", "timed_out"]:
    """Name the state that a session with this outcome is in."""
    match outcome:
        case Completed() | Ended():
            return "completed"
        case TimedOut():
            return "timed_out"
        case Failed() | Cancelled():
            return "failed"
        case _:
            assert_never(outcome)


def is_graded(outcome: Outcome) -> bool:
    """Tell a session that says something about the model from one that has to run again."""
    return isinstance(outcome, Completed) or (
        isinstance(outcome, TimedOut) and outcome.grade is not None
    )
