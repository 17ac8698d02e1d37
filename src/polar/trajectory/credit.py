"""Credit: what reward the traces of a session carry."""

from __future__ import annotations

from typing import assert_never

from polar.trajectory.builders import Built
from polar.types import Cancelled, Completed, Failed, Outcome, Session, TimedOut, Trajectory

__all__ = ["credit", "reward_of"]


def reward_of(outcome: Outcome) -> float | None:
    """Read the reward of a session; None where nothing was graded, which is not a reward of 0."""
    match outcome:
        case Completed(grade=grade):
            return grade.reward
        case TimedOut(grade=grade):
            return None if grade is None else grade.reward
        case Failed() | Cancelled():
            return None
        case _:
            assert_never(outcome)


def credit(session: Session, built: Built, outcome: Outcome) -> Trajectory | None:
    """Give the outcome's reward to the session's traces.

    Returns:
        The trajectory, or None where the session was not graded and teaches nothing.
    """
    reward = reward_of(outcome)
    if reward is None:
        return None
    return Trajectory(
        session_id=session.id,
        task_id=session.task_id,
        group_id=session.group_id,
        traces=built.traces,
        reward=reward,
        outcome=outcome,
        report=built.report,
    )
