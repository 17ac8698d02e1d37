"""What is learned from each trace: its session's advantage and its share of the normaliser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from polar.train.advantages import Rewards, advantages
from polar.train.rewards import shaped_rewards
from polar.train.settings import TrainSettings
from polar.train.standing import Standing, standing
from polar.types import Group, Trace, Trajectory

__all__ = ["Credited", "Lesson", "credited_groups", "group_lessons", "lessons", "overlong_tokens"]


@dataclass(frozen=True, slots=True)
class Lesson:
    """A trace to train on."""

    trace: Trace
    advantage: float
    weight: float
    """Each trained token's share of the loss; global over the optimizer step."""


@dataclass(frozen=True, slots=True)
class Credited:
    """A session that trains."""

    trajectory: Trajectory
    advantage: float
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
    """Give each session of a step its advantage; a group without any teaches nothing.

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
    counted = [r[s.counted] for r, s in zip(rewards, standings, strict=True)]
    found = advantages(counted, settings.algorithm)
    return [
        _credited(group, s, values, settings)
        for group, s, values in zip(groups, standings, found, strict=True)
    ]


def lessons(credited: Iterable[Sequence[Credited]], settings: TrainSettings) -> list[Lesson]:
    """Weigh the traces of one optimizer step.

    Groups without an advantage yield none and do not count in the normaliser. Sessions with
    advantage 0 in other groups count; unless the loss has terms that need no advantage they yield
    none, for their gradient is 0.
    """
    sessions = [session for group in credited for session in group]
    total = sum(session.tokens for session in sessions)
    return [
        Lesson(trace, s.advantage, _weight(s.tokens, total, len(sessions), settings))
        for s in sessions
        if s.advantage != 0.0 or settings.regularised
        for trace in _trained_traces(s.trajectory, settings)
    ]


def overlong_tokens(groups: Sequence[Group], settings: TrainSettings) -> int:
    """Count the sampled tokens of traces above `max_trace_tokens`."""
    return sum(
        int(trace.loss_mask.sum())
        for group in groups
        for trajectory in group.trajectories
        for trace in trajectory.traces
        if trace.token_ids.size > settings.max_trace_tokens
    )


def _credited(
    group: Group, standing: Standing, values: Rewards, settings: TrainSettings
) -> list[Credited]:
    """Choose the sessions that train; `values` are the advantages of those that count."""
    if not values.any():
        return []
    advantage = np.zeros(len(group.trajectories))
    advantage[standing.counted] = values
    sessions = [
        Credited(trajectory, float(value), _trained_tokens(trajectory, settings))
        for trajectory, value, trains in zip(
            group.trajectories, advantage, standing.trained, strict=True
        )
        if trains
    ]
    return [session for session in sessions if session.tokens > 0]


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
