"""Credit: what reward the traces of a session carry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, assert_never

from polar.errors import ConfigError, FidelityError
from polar.trajectory.builders import Built
from polar.types import (
    CallId,
    Cancelled,
    Completed,
    Ended,
    Failed,
    Outcome,
    Session,
    TimedOut,
    Trajectory,
)

__all__ = ["CreditPolicy", "credit", "reward_of"]


@dataclass(frozen=True, slots=True)
class CreditPolicy:
    """What a call of a session is rewarded for."""

    by: Literal["outcome", "steps"] = "outcome"
    """`outcome`: every call has the reward of the session. `steps`: a call has its own score, and
    what the calls after it in its trace and the outcome earned, discounted."""
    discount: float = 1.0
    """What a reward one call later counts, from 0 to 1; for `steps`."""

    def __post_init__(self) -> None:
        """Refuse what is no discount."""
        if not 0 <= self.discount <= 1:
            raise ConfigError(f"a discount is between 0 and 1, and not {self.discount}")


def reward_of(outcome: Outcome) -> float | None:
    """Read the reward of a session; None where nothing was graded, which is not a reward of 0."""
    match outcome:
        case Completed(grade=grade):
            return grade.reward
        case TimedOut(grade=grade):
            return None if grade is None else grade.reward
        case Failed() | Cancelled() | Ended():
            return None
        case _:
            assert_never(outcome)


def credit(
    session: Session,
    built: Built,
    outcome: Outcome,
    *,
    policy: CreditPolicy | None = None,
    step_rewards: Mapping[CallId, float] | None = None,
) -> Trajectory | None:
    """Give a session's reward to its traces and, if the policy says so, to each call its own.

    Args:
        session: Whose calls were built.
        built: Its traces.
        outcome: How it ended.
        policy: The default gives every call the reward of the outcome.
        step_rewards: Scores of single calls; one of a call that trains nowhere has no effect.

    Returns:
        The trajectory, or None where the session was not graded and teaches nothing.

    Raises:
        ConfigError: Calls were scored and the policy has no use for it.
        FidelityError: A score is not finite.
    """
    policy = policy or CreditPolicy()
    step_rewards = step_rewards or {}
    if step_rewards and policy.by == "outcome":
        raise ConfigError(
            "calls were scored, and the policy gives credit by outcome alone",
            where=f"session {session.id}",
            fix="Set the policy to `steps`, or leave the scores out.",
        )
    reward = reward_of(outcome)
    if reward is None:
        return None
    by_step = policy.by == "steps"
    return Trajectory(
        session_id=session.id,
        task_id=session.task_id,
        group_id=session.group_id,
        traces=built.traces,
        reward=reward,
        outcome=outcome,
        report=built.report,
        call_rewards=_returns(built, step_rewards, reward, policy.discount) if by_step else {},
    )


def _returns(
    built: Built, step_rewards: Mapping[CallId, float], reward: float, discount: float
) -> Mapping[CallId, float]:
    """Add up, for each trained call, what it and what was sampled after it earned.

    Calls are taken in the order of their lines: a trace at a time, and within it as sampled. The
    outcome is earned at the end of every line, so that a sub-agent shares in it.
    """
    for call_id, score in step_rewards.items():
        if not math.isfinite(score):
            raise FidelityError(f"a call's score is {score}", where=f"call {call_id}")
    returns: dict[CallId, float] = {}
    for trace in built.traces:
        after = reward
        for number, call_id in enumerate(reversed(trace.call_ids)):
            after = step_rewards.get(call_id, 0.0) + after * (discount if number else 1.0)
            returns[call_id] = after
    return MappingProxyType(returns)
