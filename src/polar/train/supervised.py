"""Supervised passes: the likelihood of every sampled token of some sessions goes up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from polar.train.optimizer import Optimizer
from polar.train.policy import Policy
from polar.train.settings import TrainSettings
from polar.train.tree_batch import Indices, TreeBatch, plan_batches
from polar.types import Trace, Trajectory

__all__ = ["SupervisedPlan", "plan_supervised", "run_supervised"]


@dataclass(frozen=True, slots=True)
class SupervisedPlan:
    """The optimizer steps of some epochs."""

    epochs: tuple[tuple[tuple[TreeBatch, ...], ...], ...]
    """The trees of each optimizer step of each epoch."""
    dropped_tokens: int
    """Sampled tokens of traces that are too long, over all epochs."""

    @property
    def steps(self) -> tuple[tuple[TreeBatch, ...], ...]:
        """The trees of each optimizer step."""
        return tuple(step for epoch in self.epochs for step in epoch)

    @property
    def batches(self) -> tuple[TreeBatch, ...]:
        """All trees."""
        return tuple(batch for step in self.steps for batch in step)


def plan_supervised(
    trajectories: Sequence[Trajectory],
    *,
    epochs: int,
    batch_sessions: int,
    settings: TrainSettings,
    share: bool = True,
    order: np.random.Generator,
) -> SupervisedPlan:
    """Shuffle the sessions anew for each epoch and merge each optimizer step's into trees."""
    planned, dropped = [], 0
    for _ in range(epochs):
        shuffled = order.permutation(len(trajectories)).tolist()
        steps = []
        for start in range(0, len(shuffled), batch_sessions):
            traces = _traces(trajectories[i] for i in shuffled[start : start + batch_sessions])
            batches, long = plan_batches(
                traces,
                max_tokens=settings.max_tokens_per_batch,
                max_trace_tokens=settings.max_trace_tokens,
                share=share,
            )
            dropped += sum(int(traces[i].loss_mask.sum()) for i in long)
            if batches:
                steps.append(tuple(batches))
        planned.append(tuple(steps))
    return SupervisedPlan(tuple(planned), dropped)


def run_supervised(
    policy: Policy, optimizer: Optimizer, plan: SupervisedPlan, progress: Callable[[float], None]
) -> tuple[float, ...]:
    """Take the planned steps; each step's loss is the mean over all its sampled tokens.

    Returns:
        The mean negative log-likelihood of a sampled token in each epoch.
    """
    losses, done, work = [], 0, sum(b.token_ids.size for b in plan.batches)
    for epoch in plan.epochs:
        total = 0.0
        for step in epoch:
            tokens = sum(batch.sample_rows.size for batch in step)
            for batch in step:
                logprobs, _ = policy.learn(
                    batch, partial(_share, tokens=tokens), collect=optimizer.collect
                )
                total -= float(logprobs.sum())
                done += batch.token_ids.size
                progress(done / work)
            optimizer.update()
        losses.append(total / sum(b.sample_rows.size for step in epoch for b in step))
    return tuple(losses)


def _share(_: Indices, logprobs: Tensor, __: Tensor, *, tokens: int) -> Tensor:
    return -logprobs.sum() / tokens


def _traces(trajectories: Iterable[Trajectory]) -> list[Trace]:
    return [t for c in trajectories for t in c.traces if t.loss_mask.any()]
