"""Advantages of sessions within their group."""

from __future__ import annotations

from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from polar.types import Cancelled, Completed, Failed, Group, MaskArray, Outcome, TimedOut

__all__ = ["graded_sessions", "group_advantages", "grpo", "has_spread", "is_graded", "rloo"]

Algorithm = Literal["grpo", "dr_grpo", "rloo"]
FailedPolicy = Literal["baseline", "exclude"]
Rewards = NDArray[np.float64]

STD_EPS = 1e-4


def group_advantages(
    group: Group, *, algorithm: Algorithm, failed: FailedPolicy = "exclude"
) -> Rewards:
    """Compute one advantage a session, whatever number of traces it yielded.

    Args:
        group: The sessions of one task.
        algorithm: How rewards become advantages.
        failed: Whether broken sessions count in the baseline, with reward 0.

    Returns:
        float64 [sessions]; 0 for broken sessions, and for all where the rewards do not differ.
    """
    graded = graded_sessions(group)
    rewards = np.array([t.reward for t in group.trajectories], dtype=np.float64)
    rewards[~graded] = 0.0
    counted = graded if failed == "exclude" else np.ones_like(graded)
    advantages = np.zeros_like(rewards)
    advantages[counted] = _advantages(rewards[counted], algorithm)
    advantages[~graded] = 0.0
    return advantages


def graded_sessions(group: Group) -> MaskArray:
    """Tell which sessions were graded and so say something about the model: bool [sessions]."""
    return np.array([is_graded(t.outcome) for t in group.trajectories], dtype=bool)


def has_spread(group: Group) -> bool:
    """Tell whether the rewards of the graded sessions differ: only then is there a gradient."""
    rewards = [t.reward for t in group.trajectories if is_graded(t.outcome)]
    return len(set(rewards)) > 1


def is_graded(outcome: Outcome) -> bool:
    """Tell whether a session was graded and so says something about the model."""
    match outcome:
        case Completed():
            return True
        case TimedOut(grade=grade):
            return grade is not None
        case Failed() | Cancelled():
            return False
        case _:
            assert_never(outcome)


def grpo(rewards: Rewards, *, divide_by_std: bool = True) -> Rewards:
    """Subtract the group's mean and, in the original form, divide by its deviation.

    Args:
        rewards: float64 [sessions].
        divide_by_std: False for Dr. GRPO, which does not favour groups with little spread.

    Source: DeepSeekMath (arXiv 2402.03300) §4.1; Dr. GRPO (arXiv 2503.20783) §3.
    """
    centred: Rewards = rewards - rewards.mean()
    return centred / (float(rewards.std(ddof=1)) + STD_EPS) if divide_by_std else centred


def rloo(rewards: Rewards) -> Rewards:
    """Subtract from each reward the mean of the others.

    Args:
        rewards: float64 [sessions], at least 2.

    Source: Back to Basics (arXiv 2402.14740) §2.
    """
    others: Rewards = (rewards.sum() - rewards) / (rewards.size - 1)
    return rewards - others


def _advantages(rewards: Rewards, algorithm: Algorithm) -> Rewards:
    if rewards.size < 2 or np.ptp(rewards) == 0.0:
        return np.zeros_like(rewards)
    match algorithm:
        case "grpo":
            return grpo(rewards)
        case "dr_grpo":
            return grpo(rewards, divide_by_std=False)
        case "rloo":
            return rloo(rewards)
        case _:
            assert_never(algorithm)
