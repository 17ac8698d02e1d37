"""Advantages of calls: how much better each did than the same call of the other sessions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import assert_never

import numpy as np

from polar.train.advantages import STD_EPS, Rewards
from polar.train.settings import Algorithm
from polar.trajectory import returns
from polar.types import Trajectory

__all__ = ["centred_returns", "step_advantages", "step_returns", "unscored_calls"]


def step_returns(trajectory: Trajectory, reward: float, discount: float) -> Rewards:
    """Compute what each trained call, and everything after it, earned.

    Args:
        trajectory: The session.
        reward: What it earned in the end.
        discount: What a reward counts one call later.

    Returns:
        float64 [calls], in order of arrival; the reward alone for a session without trained calls.
    """
    found = list(returns(trajectory, discount=discount, reward=reward).values())
    return np.array(found or [reward], dtype=np.float64)


def step_advantages(
    groups: Sequence[Sequence[Rewards]], algorithm: Algorithm
) -> list[list[Rewards]]:
    """Compute one advantage a call, where every session has one vote, however many calls it made.

    Args:
        groups: For each group of a step and each of its sessions that count, float64 [calls]:
            returns, at least one.
        algorithm: How returns become advantages.

    Returns:
        The same, of advantages; all 0 where returns that are compared do not differ.
    """
    match algorithm:
        case "grpo":
            return [_scaled(centred_returns(group)) for group in groups]
        case "dr_grpo":
            return [centred_returns(group) for group in groups]
        case "rloo":
            return [_of_the_others(centred_returns(group)) for group in groups]
        case "reinforce_pp":
            together = [session for group in groups for session in group]
            return _split(_scaled(centred_returns(together)), [len(group) for group in groups])
        case "reinforce_pp_baseline":
            centred = [session for group in groups for session in centred_returns(group)]
            return _split(_scaled(centred), [len(group) for group in groups])
        case _:
            assert_never(algorithm)


def centred_returns(sessions: Sequence[Rewards]) -> list[Rewards]:
    """Subtract from each call's return the mean return of the sessions at the same call.

    A session that has ended keeps its last return from then on: all sessions make every mean, with
    one vote each. A mean depends on how many calls went before, and on nothing that the call or
    those after it did but by the session's own part in it, as in GRPO, which `rloo` takes out.
    """
    if not sessions:
        return []
    longest = max(returns_.size for returns_ in sessions)
    table = np.stack([np.pad(r, (0, longest - r.size), mode="edge") for r in sessions])
    centred = np.where(np.ptp(table, axis=0) > 0.0, table - table.mean(axis=0), 0.0)
    return [row[: r.size] for row, r in zip(centred, sessions, strict=True)]


def unscored_calls(sessions: Iterable[Trajectory]) -> int:
    """Count the trained calls that have no score, and so count 0."""
    return sum(
        call_id not in session.step_rewards
        for session in sessions
        for trace in session.traces
        for call_id in trace.call_ids
    )


def _scaled(centred: Sequence[Rewards]) -> list[Rewards]:
    """Divide by the deviation, to which each session adds the mean square of its calls.

    Where all calls of a session have one return it is the deviation of the sessions' rewards.
    """
    if len(centred) < 2:
        return list(centred)
    squares = sum(float((session**2).mean()) for session in centred)
    deviation = np.sqrt(squares / (len(centred) - 1)) + STD_EPS
    return [session / deviation for session in centred]


def _of_the_others(centred: Sequence[Rewards]) -> list[Rewards]:
    """Turn the distance from the mean of all sessions into that from the mean of the others."""
    if len(centred) < 2:
        return list(centred)
    return [session * (len(centred) / (len(centred) - 1)) for session in centred]


def _split(sessions: Sequence[Rewards], sizes: Sequence[int]) -> list[list[Rewards]]:
    bounds = accumulate(sizes, initial=0)
    return [list(sessions[a:b]) for a, b in pairwise(bounds)]
