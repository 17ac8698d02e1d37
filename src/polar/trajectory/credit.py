"""Credit: what the traces of a session, and its single calls, earned."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import assert_never

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
    Trace,
    Trajectory,
)

__all__ = ["calls_in_order", "credit", "returns", "reward_of"]


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
    step_rewards: Mapping[CallId, float] | None = None,
) -> Trajectory | None:
    """Give a session's reward to its traces, and the scores of single calls to these.

    Args:
        session: Whose calls were built.
        built: Its traces.
        outcome: How it ended.
        step_rewards: Scores of single calls; one of a call that trains nowhere has no effect.

    Returns:
        The trajectory, or None where the session was not graded and teaches nothing.

    Raises:
        FidelityError: A score is not finite.
    """
    scores = step_rewards or {}
    for call_id, score in scores.items():
        if not math.isfinite(score):
            raise FidelityError(f"a call's score is {score}", where=f"call {call_id}")
    reward = reward_of(outcome)
    if reward is None:
        return None
    trained = (call_id for trace in built.traces for call_id in trace.call_ids)
    return Trajectory(
        session_id=session.id,
        task_id=session.task_id,
        group_id=session.group_id,
        traces=built.traces,
        reward=reward,
        outcome=outcome,
        report=built.report,
        step_rewards=MappingProxyType({c: scores[c] for c in trained if c in scores}),
    )


def calls_in_order(trajectory: Trajectory) -> tuple[CallId, ...]:
    """List the trained calls of a session as they arrived, whatever trace they are in.

    Raises:
        FidelityError: The traces do not say it.
    """
    found: list[tuple[int, CallId]] = []
    for trace in trajectory.traces:
        if (why := _unknown_calls(trace)) is not None:
            raise _unordered(trajectory, why)
        found += zip(trace.call_indices, trace.call_ids, strict=True)
    for call_id, times in Counter(call_id for _, call_id in found).items():
        if times > 1:
            raise _unordered(trajectory, f"the call {call_id} is trained twice")
    return tuple(call_id for _, call_id in sorted(found))


def returns(
    trajectory: Trajectory, *, discount: float = 1.0, reward: float | None = None
) -> Mapping[CallId, float]:
    """Add up, for each trained call, what it and everything after it earned.

    Calls are taken as they arrived. The outcome is earned with the last one; a call without a
    score earned 0. What came later in another trace, after a rewrite or of a sub-agent, counts
    as well, for it may have come from this call.

    Args:
        trajectory: Whose calls were scored.
        discount: What a reward one call later counts, from 0 to 1.
        reward: What the session earned in the end; absent: its own reward.

    Raises:
        ConfigError: The discount is none.
        FidelityError: The traces do not say in which order their calls arrived.
    """
    if not 0 <= discount <= 1:
        raise ConfigError(f"a discount is between 0 and 1, and not {discount}")
    after = trajectory.reward if reward is None else reward
    found: dict[CallId, float] = {}
    for number, call_id in enumerate(reversed(calls_in_order(trajectory))):
        after = trajectory.step_rewards.get(call_id, 0.0) + after * (discount if number else 1.0)
        found[call_id] = after
    return MappingProxyType(dict(reversed(found.items())))


def _unknown_calls(trace: Trace) -> str | None:
    """Say why it is not known which tokens of a trace are of which call; None where it is."""
    if not len(trace.call_ids) == len(trace.call_indices) == len(trace.call_tokens):
        return "a trace does not say which of its tokens are of which call"
    trained, given = int(trace.loss_mask.sum()), sum(trace.call_tokens)
    if trained != given:
        return f"of {trained} trained tokens {given} are given to calls"
    return None


def _unordered(trajectory: Trajectory, why: str) -> FidelityError:
    return FidelityError(
        why,
        where=f"session {trajectory.session_id}",
        fix="Build the traces anew from the calls, or train with credit: outcome.",
    )
