"""Which sessions of a group say something about the model, count in its baseline, and train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from polar.train.advantages import Rewards
from polar.train.settings import TrainSettings
from polar.train.step_advantages import centred_returns, step_returns
from polar.types import (
    Cancelled,
    Completed,
    Ended,
    Failed,
    Group,
    MaskArray,
    Outcome,
    TimedOut,
    Trajectory,
)

__all__ = [
    "Standing",
    "graded_sessions",
    "has_spread",
    "is_graded",
    "is_truncated",
    "standing",
    "teaching_groups",
]


@dataclass(frozen=True, slots=True)
class Standing:
    """What the sessions of a group count for."""

    counted: MaskArray
    """bool [sessions]; whose rewards make the baseline."""
    trained: MaskArray
    """bool [sessions]; whose tokens are trained."""


def standing(group: Group, settings: TrainSettings) -> Standing:
    """Apply the declared policies: broken sessions never train, truncated ones as set."""
    graded = graded_sessions(group)
    counted = graded if settings.failed_sessions == "exclude" else np.ones_like(graded)
    truncated = np.array([is_truncated(t, settings) for t in group.trajectories], dtype=bool)
    match settings.truncated_sessions:
        case "train":
            return Standing(counted, graded)
        case "baseline":
            return Standing(counted, graded & ~truncated)
        case "exclude":
            return Standing(counted & ~truncated, graded & ~truncated)
        case _:
            assert_never(settings.truncated_sessions)


def is_truncated(trajectory: Trajectory, settings: TrainSettings) -> bool:
    """Tell whether a session was cut off before its model was done.

    It ran out of time, its last call was refused at a limit, the reply of one of its calls reached
    the token limit, or a trace is longer than the rollout or the trainer takes.
    """
    return (
        _is_cut_off(trajectory.outcome)
        or trajectory.report.cut_replies > 0
        or trajectory.report.dropped.get("too_long", 0) > 0
        or any(t.token_ids.size > settings.max_trace_tokens for t in trajectory.traces)
    )


def _is_cut_off(outcome: Outcome) -> bool:
    match outcome:
        case Completed(cut_off=limit):
            return limit is not None
        case TimedOut():
            return True
        case Failed() | Cancelled() | Ended():
            return False
        case _:
            assert_never(outcome)


def graded_sessions(group: Group) -> MaskArray:
    """Tell which sessions were graded and so say something about the model: bool [sessions]."""
    return np.array([is_graded(t.outcome) for t in group.trajectories], dtype=bool)


def has_spread(group: Group, settings: TrainSettings) -> bool:
    """Tell whether the sessions that count earned anything different, and one of them trains.

    What length or distance costs is not looked at.
    """
    found = standing(group, settings)
    return bool(found.trained.any()) and _differ(_earned(group, found, settings))


def teaching_groups(groups: Sequence[Group], settings: TrainSettings) -> list[Group]:
    """Leave out the groups that have nothing to teach, whatever distance costs.

    Where sessions are compared with those of other groups, it is the step that needs a spread.
    """
    if settings.algorithm != "reinforce_pp":
        return [group for group in groups if has_spread(group, settings)]
    earned = [each for g in groups for each in _earned(g, standing(g, settings), settings)]
    return list(groups) if _differ(earned) else []


def is_graded(outcome: Outcome) -> bool:
    """Tell whether a session was graded and so says something about the model."""
    match outcome:
        case Completed():
            return True
        case TimedOut(grade=grade):
            return grade is not None
        case Failed() | Cancelled() | Ended():
            return False
        case _:
            assert_never(outcome)


def _earned(group: Group, found: Standing, settings: TrainSettings) -> list[Rewards]:
    """List what each session that counts earned: [1], or [calls]; 0 if it was not graded."""
    counting = [t for t, counts in zip(group.trajectories, found.counted, strict=True) if counts]
    rewards = [t.reward if is_graded(t.outcome) else 0.0 for t in counting]
    match settings.credit:
        case "outcome":
            return [np.array([reward]) for reward in rewards]
        case "steps":
            each = zip(counting, rewards, strict=True)
            return [step_returns(t, reward, settings.discount) for t, reward in each]
        case _:
            assert_never(settings.credit)


def _differ(earned: Sequence[Rewards]) -> bool:
    return any(centred.any() for centred in centred_returns(earned))
