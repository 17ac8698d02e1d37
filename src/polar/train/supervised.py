"""Supervised passes: the likelihood of every sampled token of some sessions goes up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import Tensor

from polar.train.deal import Hands, deal
from polar.train.lockstep import for_each
from polar.train.optimizer import Optimizer
from polar.train.policy import Policy
from polar.train.ranks import Ranks, exposed
from polar.train.settings import TrainSettings
from polar.train.tree_batch import Indices, TreeBatch, plan_batches
from polar.types import Trace, Trajectory

__all__ = ["SupervisedPlan", "SupervisedStep", "plan_supervised", "run_supervised"]


@dataclass(frozen=True, slots=True)
class SupervisedStep:
    """One optimizer step."""

    hands: Hands
    """The trees of each rank."""
    tokens: int
    """Sampled tokens of all ranks' trees, which the loss is divided by."""


@dataclass(frozen=True, slots=True)
class SupervisedPlan:
    """The optimizer steps of some epochs."""

    epochs: tuple[tuple[SupervisedStep, ...], ...]
    dropped_tokens: int
    """Sampled tokens of traces that are too long, over all epochs."""

    @property
    def steps(self) -> tuple[SupervisedStep, ...]:
        """All optimizer steps."""
        return tuple(step for epoch in self.epochs for step in epoch)

    @property
    def batches(self) -> tuple[TreeBatch, ...]:
        """All trees."""
        return tuple(batch for step in self.steps for hand in step.hands for batch in hand)

    def hand(self, rank: int) -> SupervisedPlan:
        """What one rank needs to know: only its own trees."""
        epochs = (
            tuple(replace(step, hands=step.hands[rank : rank + 1]) for step in epoch)
            for epoch in self.epochs
        )
        return replace(self, epochs=tuple(epochs))


def plan_supervised(  # noqa: PLR0913 - by name
    trajectories: Sequence[Trajectory],
    *,
    epochs: int,
    batch_sessions: int,
    settings: TrainSettings,
    order: np.random.Generator,
    share: bool = True,
    most_nodes: int | None = None,
    ranks: int = 1,
) -> SupervisedPlan:
    """Shuffle the sessions anew for each epoch and merge each optimizer step's into trees.

    Args:
        trajectories: The sessions.
        epochs: How often each is seen.
        batch_sessions: Sessions of an optimizer step.
        settings: How long a trace may be.
        order: Shuffles.
        share: Whether trees share what sessions have in common.
        most_nodes: Of one tree; absent: any number.
        ranks: Among how many the trees of a step are divided.
    """
    planned, dropped = [], 0
    for _ in range(epochs):
        shuffled = order.permutation(len(trajectories)).tolist()
        steps = []
        for start in range(0, len(shuffled), batch_sessions):
            traces = _traces(trajectories[i] for i in shuffled[start : start + batch_sessions])
            step, long = _plan_step(
                traces, settings, share=share, most_nodes=most_nodes, ranks=ranks
            )
            dropped += sum(int(traces[i].loss_mask.sum()) for i in long)
            if step.tokens:
                steps.append(step)
        planned.append(tuple(steps))
    return SupervisedPlan(tuple(planned), dropped)


def run_supervised(
    policy: Policy,
    optimizer: Optimizer,
    plan: SupervisedPlan,
    progress: Callable[[float], None],
    ranks: Ranks,
) -> tuple[float, ...]:
    """Take the planned steps; each step's loss is the mean over all its sampled tokens.

    Args:
        policy: What is trained.
        optimizer: Takes the steps.
        plan: Of each step only the trees of this rank.
        progress: Told the done share of them.
        ranks: Who takes the same steps over other trees.

    Returns:
        The mean negative log-likelihood of a sampled token in each epoch.
    """
    losses, done, work = [], 0, sum(b.token_ids.size for b in plan.batches)
    idle = None if policy.lockstep is None else policy.idle

    def advance(nodes: int) -> None:
        nonlocal done
        done += nodes
        progress(done / work)

    for epoch in plan.epochs:
        total = 0.0
        for step in epoch:

            def learn(batch: TreeBatch, tokens: int = step.tokens) -> None:
                nonlocal total
                loss_of = partial(_share, tokens=tokens)
                logprobs, _ = policy.learn(
                    batch, loss_of, collect=optimizer.collect, advance=advance
                )
                total -= float(logprobs.sum())

            for_each(step.hands[0], learn, ranks=ranks, idle=idle)
            with exposed(ranks):
                optimizer.update()
        losses.append(sum(ranks.gathered(total)) / sum(step.tokens for step in epoch))
    return tuple(losses)


def _plan_step(
    traces: Sequence[Trace],
    settings: TrainSettings,
    *,
    share: bool,
    most_nodes: int | None,
    ranks: int,
) -> tuple[SupervisedStep, tuple[int, ...]]:
    """Plan an optimizer step, and tell which traces are too long for it."""

    def plan(max_tokens: int | None) -> list[TreeBatch]:
        longest = settings.max_trace_tokens
        return plan_batches(traces, max_tokens=max_tokens, max_trace_tokens=longest, share=share)[0]

    hands = deal(plan, max_tokens=most_nodes, ranks=ranks)
    tokens = sum(batch.sample_rows.size for hand in hands for batch in hand)
    long = tuple(i for i, t in enumerate(traces) if t.token_ids.size > settings.max_trace_tokens)
    return SupervisedStep(hands, tokens), long


def _share(_: Indices, logprobs: Tensor, __: Tensor, *, tokens: int) -> Tensor:
    return -logprobs.sum() / tokens


def _traces(trajectories: Iterable[Trajectory]) -> list[Trace]:
    return [t for c in trajectories for t in c.traces if t.loss_mask.any()]
