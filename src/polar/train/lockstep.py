"""Passes that every rank makes at once, because no rank could make one alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from polar.train.depth_first import LossOf, loss_gradients
from polar.train.ranks import Ranks, together
from polar.train.tree_batch import TreeBatch, build_tree
from polar.types import Trace

__all__ = ["Lockstep", "empty_lesson", "for_each", "idle_tree", "learn_at_once"]

T = TypeVar("T")


class Lockstep(Protocol):
    """A model that a rank can go through only when all ranks do."""

    def forward(self, compute: Callable[[], T]) -> T:
        """Let `compute` go through the model, once and whole."""
        ...

    def backward(self, roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Go back through the model from what `forward` has returned."""
        ...


def for_each(
    batches: Sequence[TreeBatch],
    work: Callable[[TreeBatch], object],
    *,
    ranks: Ranks,
    idle: Callable[[], object] | None,
) -> None:
    """Do the work of each tree of this rank, and leave when every rank has got through its own.

    Args:
        batches: The trees; another rank may have more or fewer.
        work: What is done with each.
        ranks: Who goes through other trees meanwhile.
        idle: Makes the passes of one tree without any effect, for ranks that go in lockstep;
            absent: passes are everybody's own.

    Raises:
        TrainingError: It failed on another rank (on rank 0).
        Undone: It failed on some rank (on the others).
    """
    most = len(batches) if idle is None else max(ranks.gathered(len(batches)))
    with together(ranks):
        failure: BaseException | None = None
        for index in range(most):
            if failure is not None or index >= len(batches):
                assert idle is not None
                idle()
                continue
            try:
                work(batches[index])
            except BaseException as error:
                if idle is None or ranks.broken:
                    raise
                failure = error  # the others still need this rank
        if failure is not None:
            raise failure


def learn_at_once(
    batch: TreeBatch, loss_of: LossOf, computed: tuple[Tensor, Tensor], lockstep: Lockstep
) -> tuple[Tensor, Tensor]:
    """Add the gradient of a loss to the parameters, in one pass back through the whole tree.

    Args:
        batch: The tree.
        loss_of: The loss. If it fails, the gradient is zero and the pass is made all the same.
        computed: Logprobs float32 [samples] and entropies float32 [rows], from `lockstep.forward`.
        lockstep: The model.

    Returns:
        Logprobs and entropies without gradient.

    Raises:
        TrainingError: The loss is not finite.
    """
    values, entropies = (each.detach() for each in computed)
    rows = torch.from_numpy(batch.sample_rows).to(values.device)
    gradients = [torch.zeros_like(values), torch.zeros_like(entropies)]
    failure: BaseException | None = None
    try:
        samples = np.arange(batch.sample_rows.size)
        by_value, by_entropy = loss_gradients(loss_of, samples, values.clone(), entropies[rows])
        if by_value is not None:
            gradients[0] = by_value
        if by_entropy is not None:
            gradients[1].index_add_(0, rows, by_entropy)
    except BaseException as error:
        failure = error
    lockstep.backward(computed, gradients)
    if failure is not None:
        raise failure
    return values, entropies


def idle_tree() -> TreeBatch:
    """Make the smallest tree, which goes through every layer and teaches nothing."""
    mask = np.array([False, True])
    nothing = np.zeros(2, np.float32)
    return build_tree([Trace(np.zeros(2, np.int32), mask, nothing, np.zeros(2, np.int32), ())])


def empty_lesson(_: object, logprobs: Tensor, __: Tensor) -> Tensor:
    """Be a loss whose gradient is zero."""
    return logprobs.sum() * 0.0
