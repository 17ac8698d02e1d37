"""What a session earned in the end: its reward, less what its length and its distance cost."""

from __future__ import annotations

import numpy as np

from polar.train.advantages import Rewards
from polar.train.settings import OverlongSettings, TrainSettings
from polar.train.standing import is_graded
from polar.types import Group

__all__ = ["overlong_penalty", "shaped_rewards"]


def shaped_rewards(group: Group, settings: TrainSettings, divergence: Rewards | None) -> Rewards:
    """Compute the rewards that advantages are made of.

    Args:
        group: The sessions of one task.
        settings: Coefficients.
        divergence: float64 [sessions]; sum over a session's trained tokens of how much likelier
            they are than under the reference; absent: it costs nothing.

    Returns:
        float64 [sessions]; 0 for sessions that were not graded.
    """
    graded = [is_graded(t.outcome) for t in group.trajectories]
    rewards = np.array([t.reward for t in group.trajectories], dtype=np.float64)
    if settings.overlong is not None:
        lengths = [t.report.sampled for t in group.trajectories]
        rewards -= [overlong_penalty(length, settings.overlong) for length in lengths]
    if settings.kl is not None and divergence is not None:
        rewards -= settings.kl.coefficient * divergence
    return np.where(graded, rewards, 0.0)


def overlong_penalty(sampled: int, settings: OverlongSettings) -> float:
    """Compute what a length costs: nothing at first, then linearly more, up to the full penalty.

    Args:
        sampled: Tokens that the session sampled, trained or not.
        settings: Where it begins and how far it goes.

    Source: soft overlong punishment, DAPO (arXiv 2503.14476) §3.4.
    """
    over = sampled - (settings.max_tokens - settings.buffer_tokens)
    return settings.penalty * min(1.0, max(0.0, over / settings.buffer_tokens))
