"""How old the weights are that sampled what is trained on, and what is too old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from polar.types import Group, IntArray, Trajectory

__all__ = ["Staleness", "within_bound"]


@dataclass(frozen=True, slots=True)
class Staleness:
    """Ages, in weight versions, of the sampled tokens that a step trains on."""

    staleness_mean: float
    staleness_max: int
    stale_sessions: int
    """Sessions left out because a token of theirs is older than the bound."""
    stale_tokens: int
    """Sampled tokens of these sessions."""


def within_bound(
    groups: Sequence[Group], *, version: int, bound: int
) -> tuple[tuple[Group, ...], Staleness]:
    """Leave out every session with a token that is too old.

    Args:
        groups: What was collected.
        version: Weight version that is about to be trained.
        bound: Most versions that a token may be older.

    Returns:
        The groups with the sessions that are left, and the ages of their tokens.
    """
    kept, ages, stale = [], [np.zeros(0, np.int32)], []
    for group in groups:
        fresh = []
        for trajectory in group.trajectories:
            age = version - _versions(trajectory)
            if age.max(initial=0) > bound:
                stale.append(age.size)
            else:
                fresh.append(trajectory)
                ages.append(age)
        kept.append(replace(group, trajectories=tuple(fresh)))
    found = np.concatenate(ages)
    return tuple(kept), Staleness(
        staleness_mean=float(found.mean()) if found.size else 0.0,
        staleness_max=int(found.max(initial=0)),
        stale_sessions=len(stale),
        stale_tokens=sum(stale),
    )


def _versions(trajectory: Trajectory) -> IntArray:
    """Weight versions of a session's trained tokens: int32 [sampled]."""
    each = [trace.weight_versions[trace.loss_mask] for trace in trajectory.traces]
    return np.concatenate([np.zeros(0, np.int32), *each]).astype(np.int32)
