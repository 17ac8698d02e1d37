"""What is learned from each trace: the advantages of its tokens, its share of the normaliser."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from polar.train.advantages import Rewards, advantages
from polar.train.rewards import shaped_rewards
from polar.train.settings import TrainSettings
from polar.train.standing import Standing, standing
from polar.train.step_advantages import step_advantages, step_returns
from polar.trajectory import calls_in_order
from polar.types import FloatArray, Group, Trace, Trajectory

__all__ = ["Credited", "Lesson", "credited_groups", "group_lessons", "lessons", "overlong_tokens"]


@dataclass(frozen=True, slots=True)
class Lesson:
    """A trace to train on."""

    trace: Trace
    advantages: FloatArray
    """float32 [seq]; of the call, or the session, that sampled the token. Of no meaning where
    `loss_mask` is false."""
    weight: float
    """Each trained token's share of the loss; global over the optimizer step."""


@dataclass(frozen=True, slots=True)
class Credited:
    """A session that trains."""

    trajectory: Trajectory
    advantages: Rewards
    """float64 [1]: of the session; or [calls]: of each trained call, in order of arrival."""
    tokens: int
    """Its trained tokens."""


def group_lessons(groups: Sequence[Group], settings: TrainSettings) -> list[Lesson]:
    """Turn the groups of one optimizer step into weighted traces."""
    return lessons(credited_groups(groups, settings), settings)


def credited_groups(
    groups: Sequence[Group],
    settings: TrainSettings,
    divergences: Sequence[Rewards] | None = None,
) -> list[list[Credited]]:
    """Give the sessions of a step, or their calls, advantages; a group without teaches nothing.

    Args:
        groups: All groups of the step.
        settings: Algorithm, policies, shaping.
        divergences: For each group, float64 [sessions]; see `shaped_rewards`.

    Returns:
        The sessions to train on of each group. Traces above `max_trace_tokens` do not count.
    """
    standings = [standing(group, settings) for group in groups]
    costs: Sequence[Rewards | None] = divergences or [None] * len(groups)
    rewards = [
        shaped_rewards(group, settings, cost) for group, cost in zip(groups, costs, strict=True)
    ]
    found = _advantages(groups, standings, rewards, settings)
    return [
        _credited(group, s, values, settings)
        for group, s, values in zip(groups, standings, found, strict=True)
    ]


def lessons(credited: Iterable[Sequence[Credited]], settings: TrainSettings) -> list[Lesson]:
    """Weigh the traces of one optimizer step.

    Groups without an advantage yield none and do not count in the normaliser. Traces whose
    advantages are all 0 in other groups count; unless the loss has terms that need no advantage
    they yield none, for their gradient is 0.
    """
    sessions = [session for group in credited for session in group]
    total = sum(session.tokens for session in sessions)
    found = [
        Lesson(trace, values, _weight(s.tokens, total, len(sessions), settings))
        for s in sessions
        for trace, values in _by_token(s, settings)
    ]
    return [lesson for lesson in found if lesson.advantages.any() or settings.regularised]


def overlong_tokens(groups: Sequence[Group], settings: TrainSettings) -> int:
    """Count the sampled tokens of traces above `max_trace_tokens`."""
    return sum(
        int(trace.loss_mask.sum())
        for group in groups
        for trajectory in group.trajectories
        for trace in trajectory.traces
        if trace.token_ids.size > settings.max_trace_tokens
    )


def _advantages(
    groups: Sequence[Group],
    standings: Sequence[Standing],
    rewards: Sequence[Rewards],
    settings: TrainSettings,
) -> Sequence[Sequence[Rewards]]:
    """Compute the advantages of the sessions that count: [1] each, or [calls]."""
    match settings.credit:
        case "outcome":
            counted = [r[s.counted] for r, s in zip(rewards, standings, strict=True)]
            return [list(a[:, None]) for a in advantages(counted, settings.algorithm)]
        case "steps":
            returns = [
                [
                    step_returns(trajectory, float(reward), settings.discount)
                    for trajectory, reward, counts in zip(g.trajectories, r, s.counted, strict=True)
                    if counts
                ]
                for g, s, r in zip(groups, standings, rewards, strict=True)
            ]
            return step_advantages(returns, settings.algorithm)
        case _:
            assert_never(settings.credit)


def _credited(
    group: Group, standing: Standing, values: Sequence[Rewards], settings: TrainSettings
) -> list[Credited]:
    """Choose the sessions that train; `values` are the advantages of those that count."""
    if not any(value.any() for value in values):
        return []
    counting = [t for t, counts in zip(group.trajectories, standing.counted, strict=True) if counts]
    trained = standing.trained[standing.counted]
    sessions = [
        Credited(trajectory, value, _trained_tokens(trajectory, settings))
        for trajectory, value, trains in zip(counting, values, trained, strict=True)
        if trains
    ]
    return [session for session in sessions if session.tokens > 0]


def _by_token(session: Credited, settings: TrainSettings) -> Iterator[tuple[Trace, FloatArray]]:
    """Lay out the advantages of a session's traces: float32 [seq] each."""
    values = session.advantages.astype(np.float32)
    if settings.credit == "outcome":
        for trace in _trained_traces(session.trajectory, settings):
            yield trace, np.full(trace.token_ids.size, values[0])
        return
    place = {call: i for i, call in enumerate(calls_in_order(session.trajectory))}
    for trace in _trained_traces(session.trajectory, settings):
        found = np.zeros(trace.token_ids.size, np.float32)
        of_calls = values[[place[call] for call in trace.call_ids]]
        found[trace.loss_mask] = np.repeat(of_calls, trace.call_tokens)
        yield trace, found


def _trained_traces(trajectory: Trajectory, settings: TrainSettings) -> list[Trace]:
    return [
        trace
        for trace in trajectory.traces
        if trace.loss_mask.any() and trace.token_ids.size <= settings.max_trace_tokens
    ]


def _trained_tokens(trajectory: Trajectory, settings: TrainSettings) -> int:
    return sum(int(trace.loss_mask.sum()) for trace in _trained_traces(trajectory, settings))


def _weight(tokens: int, total: int, sessions: int, settings: TrainSettings) -> float:
    match settings.normalizer:
        case "token_mean":
            return 1.0 / total
        case "session_mean":
            return 1.0 / (sessions * tokens)
        case "constant":
            return 1.0 / (sessions * settings.normalizer_tokens)
        case _:
            assert_never(settings.normalizer)
