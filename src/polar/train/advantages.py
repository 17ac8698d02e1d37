"""Advantages of sessions: how much better than expected each did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from polar.train.settings import Algorithm

__all__ = ["Rewards", "advantages", "grpo", "reinforce_pp", "reinforce_pp_baseline", "rloo"]

Rewards = NDArray[np.float64]

STD_EPS = 1e-4


def advantages(groups: Sequence[Rewards], algorithm: Algorithm) -> list[Rewards]:
    """Compute one advantage a session, whatever number of traces it yielded.

    Args:
        groups: float64 [sessions] of each group of a step; the rewards that count.
        algorithm: How rewards become advantages.

    Returns:
        float64 [sessions] of each group; all 0 where rewards that are compared do not differ.
    """
    match algorithm:
        case "grpo":
            return [
                grpo(rewards) if _differ(rewards) else np.zeros_like(rewards) for rewards in groups
            ]
        case "dr_grpo":
            return [_centred(rewards) for rewards in groups]
        case "rloo":
            return [
                rloo(rewards) if _differ(rewards) else np.zeros_like(rewards) for rewards in groups
            ]
        case "reinforce_pp":
            return reinforce_pp(groups)
        case "reinforce_pp_baseline":
            return reinforce_pp_baseline(groups)
        case _:
            assert_never(algorithm)


def grpo(rewards: Rewards) -> Rewards:
    """Subtract the group's mean and divide by its deviation.

    Args:
        rewards: float64 [sessions], at least 2.

    Source: DeepSeekMath (arXiv 2402.03300) §4.1. Without the division, `dr_grpo`, groups of little
        spread are not favoured: Dr. GRPO (arXiv 2503.20783) §3.
    """
    normal: Rewards = (rewards - rewards.mean()) / (float(rewards.std(ddof=1)) + STD_EPS)
    return normal


def rloo(rewards: Rewards) -> Rewards:
    """Subtract from each reward the mean of the others.

    Args:
        rewards: float64 [sessions], at least 2.

    Source: Back to Basics (arXiv 2402.14740) §2.
    """
    others: Rewards = (rewards.sum() - rewards) / (rewards.size - 1)
    return rewards - others


def reinforce_pp(groups: Sequence[Rewards]) -> list[Rewards]:
    """Normalise by the mean and the deviation of all sessions of the step, whatever their group.

    Source: REINFORCE++ (arXiv 2501.03262) §3.
    """
    together = np.concatenate([np.zeros(0), *groups])
    mean = together.mean() if together.size else 0.0
    return _over_deviation([rewards - mean for rewards in groups], together)


def reinforce_pp_baseline(groups: Sequence[Rewards]) -> list[Rewards]:
    """Subtract the group's mean, then normalise over all sessions of the step.

    The mean over the step is 0 by then. It is not subtracted, for rounding would give groups whose
    rewards are all the same an advantage, and a part in the normaliser.

    Source: REINFORCE++ (arXiv 2501.03262) §3, the variant with a baseline.
    """
    centred = [_centred(rewards) for rewards in groups]
    return _over_deviation(centred, np.concatenate([np.zeros(0), *centred]))


def _over_deviation(groups: Sequence[Rewards], together: Rewards) -> list[Rewards]:
    if not _differ(together):
        return [np.zeros_like(rewards) for rewards in groups]
    return [rewards / (float(together.std(ddof=1)) + STD_EPS) for rewards in groups]


def _centred(rewards: Rewards) -> Rewards:
    return rewards - rewards.mean() if _differ(rewards) else np.zeros_like(rewards)


def _differ(rewards: Rewards) -> bool:
    return rewards.size > 1 and float(np.ptp(rewards)) > 0.0
