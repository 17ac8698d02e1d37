"""The metrics row of a training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from polar.train.collecting import Collection
from polar.train.figures import figures_of
from polar.train.metrics import StepMetrics
from polar.train.pace import pace
from polar.train.staleness import Staleness
from polar.types import Group

__all__ = ["StepTimes", "step_row"]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When a step did what, in seconds."""

    started: float
    """When training turned to it."""
    collected: float
    """When training had its sessions."""
    trained: float


def step_row(
    step: int,
    metrics: StepMetrics,
    *,
    groups: Sequence[Group],
    staleness: Staleness,
    collection: Collection,
    times: StepTimes,
) -> Mapping[str, object]:
    """Put together what is known of a step.

    Args:
        step: The step.
        metrics: What the trainer says of it.
        groups: What was trained on.
        staleness: How old that was, and what was left out for it.
        collection: How the sessions were collected.
        times: When it did what.
    """
    figures = figures_of(groups)
    wait_s, train_s = times.collected - times.started, times.trained - times.collected
    speed = pace(
        tokens=(figures.sampled_tokens, metrics.trained_tokens, metrics.tree_tokens),
        rollout_s=collection.rollout_s,
        wait_s=wait_s,
        train_s=train_s,
    )
    return {
        **asdict(metrics),
        "phase": "train",
        "step": step,
        **asdict(figures),
        **asdict(staleness),
        "lay_s": max(0.0, times.started - collection.complete_at),
        "groups_refilled": collection.refilled,
        "groups_carried": collection.carried,
        "groups_late": len(collection.late),
        "rollout_s": collection.rollout_s,
        "wait_s": wait_s,
        "train_s": train_s,
        **asdict(speed),
    }
