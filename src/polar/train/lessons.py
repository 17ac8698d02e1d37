"""What is learned from each trace: its session's advantage and its share of the normaliser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from polar.train.advantages import graded_sessions, group_advantages
from polar.train.settings import TrainSettings
from polar.types import Group, Trace, Trajectory

__all__ = ["Lesson", "group_lessons", "overlong_tokens"]


@dataclass(frozen=True, slots=True)
class Lesson:
    """A trace to train on."""

    trace: Trace
    advantage: float
    weight: float
    """Each trained token's share of the loss; global over the optimizer step."""


@dataclass(frozen=True, slots=True)
class _Credited:
    trajectory: Trajectory
    advantage: float
    tokens: int


def group_lessons(groups: Sequence[Group], settings: TrainSettings) -> list[Lesson]:
    """Turn the groups of one optimizer step into weighted traces.

    Groups whose rewards do not differ yield none and do not count in the normaliser. Sessions
    with advantage 0 in other groups count, but yield none: their gradient is 0. Traces above
    `max_trace_tokens` are left out everywhere.
    """
    credited = [c for group in groups for c in _credit(group, settings)]
    total = sum(c.tokens for c in credited)
    return [
        Lesson(trace, c.advantage, _weight(c.tokens, total, len(credited), settings))
        for c in credited
        if c.advantage != 0.0
        for trace in _trained_traces(c.trajectory, settings)
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


def _credit(group: Group, settings: TrainSettings) -> list[_Credited]:
    advantages = group_advantages(
        group, algorithm=settings.algorithm, failed=settings.failed_sessions
    )
    if not advantages.any():
        return []
    graded = graded_sessions(group)
    counted = [
        _Credited(trajectory, float(advantage), _trained_tokens(trajectory, settings))
        for trajectory, advantage, kept in zip(group.trajectories, advantages, graded, strict=True)
        if kept
    ]
    return [c for c in counted if c.tokens > 0]


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
