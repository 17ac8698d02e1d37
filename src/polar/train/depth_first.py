"""Forward and backward through a tree piece by piece, holding only the path to the last piece.

A piece is computed forward after those that its rows descend from, and backward as soon as all that
descends from it is done: what its keys and values mean to its descendants has then been added up.
So a group of sessions needs the memory of its longest session and one piece, whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polar.errors import TrainingError
from polar.train.pieces import Piece
from polar.train.tree_batch import Indices, TreeBatch
from polar.train.tree_context import Kernel, TreeContext

__all__ = ["DepthFirst", "LossOf", "loss_gradients"]

LossOf = Callable[[Indices, Tensor, Tensor], Tensor]
"""The share of the loss of some whole traces, from the indices of their samples in the batch, the
logprobs of these and the entropies; shares add up to the loss."""

Compute = Callable[[TreeContext, slice, slice], tuple[Tensor, Tensor]]
"""Logprobs and entropies of a piece, given the slices of samples and of rows it predicts."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A piece between its forward and its backward pass."""

    tree: TreeContext
    until: int
    logprobs: Tensor
    entropies: Tensor
    samples: slice
    rows: slice


class DepthFirst:
    """One pass over a batch.

    Args:
        batch: The tree.
        compute: The forward pass of a piece.
        kernel: What computes attention.
        device: Where the model is.
    """

    def __init__(
        self,
        batch: TreeBatch,
        *,
        compute: Compute,
        kernel: Kernel,
        device: torch.device,
    ) -> None:
        self._batch = batch
        self._compute, self._kernel = compute, kernel
        self._open: list[_Open] = []
        self._logprobs, self._gradient = torch.zeros(
            2, batch.sample_rows.size, dtype=torch.float32, device=device
        )
        self._entropies = torch.zeros(batch.logit_nodes.size, device=device)
        self._entropy_gradient: Tensor | None = None  # seldom part of a loss
        nodes = batch.logit_nodes[batch.sample_rows]
        last = np.zeros(int(batch.sample_traces.max(initial=-1)) + 1, np.int64)
        np.maximum.at(last, batch.sample_traces, nodes)
        self._sample_nodes = nodes
        self._last_nodes = last[batch.sample_traces]  # when a sample's whole trace is known

    def learn(
        self, pieces: Sequence[Piece], *, loss_of: LossOf, done: Callable[[int], None]
    ) -> tuple[Tensor, Tensor]:
        """Add the gradient of the loss to the parameters.

        Args:
            pieces: The batch's, in order.
            loss_of: The loss.
            done: Called after each piece's backward pass with the number of its nodes.

        Returns:
            Logprobs float32 [samples] and entropies float32 [rows], without gradient.

        Raises:
            TrainingError: The loss is not finite.
        """
        for piece in pieces:
            self._finish(piece.start, done)
            self._forward(piece)
            self._weigh(piece, loss_of)
        self._finish(self._batch.token_ids.size, done)
        return self._logprobs, self._entropies

    @torch.no_grad()
    def measure(self, pieces: Sequence[Piece]) -> tuple[Tensor, Tensor]:
        """Compute the same logprobs and entropies, and no gradient."""
        for piece in pieces:
            while self._open and self._open[-1].until <= piece.start:
                self._open.pop()
            self._forward(piece)
        return self._logprobs, self._entropies

    def _forward(self, piece: Piece) -> None:
        edges = (piece.start, piece.stop)
        samples = slice(*np.searchsorted(self._sample_nodes, edges).tolist())
        rows = slice(*np.searchsorted(self._batch.logit_nodes, edges).tolist())
        past = [o.tree for o in self._open]
        tree = TreeContext(self._batch.layout, piece, past=past, kernel=self._kernel)
        logprobs, entropies = self._compute(tree, samples, rows)
        self._logprobs[samples] = logprobs.detach()
        self._entropies[rows] = entropies.detach()
        self._open.append(_Open(tree, piece.until, logprobs, entropies, samples, rows))

    def _weigh(self, piece: Piece, loss_of: LossOf) -> None:
        """Take the loss of the traces of which this piece has the last sample."""
        last = self._last_nodes
        samples = np.flatnonzero((piece.start <= last) & (last < piece.stop))
        if not samples.size:
            return
        index = torch.from_numpy(samples).to(self._logprobs.device)
        rows = torch.from_numpy(self._batch.sample_rows[samples]).to(self._logprobs.device)
        by_value, by_entropy = loss_gradients(
            loss_of, samples, self._logprobs[index], self._entropies[rows]
        )
        if by_value is not None:
            self._gradient[index] = by_value
        if by_entropy is not None:
            if self._entropy_gradient is None:
                self._entropy_gradient = torch.zeros_like(self._entropies)
            self._entropy_gradient.index_add_(0, rows, by_entropy)

    def _finish(self, row: int, done: Callable[[int], None]) -> None:
        """Go back through the last pieces, as far as nothing from `row` on descends from them."""
        while self._open and self._open[-1].until <= row:
            last = self._open.pop()
            roots = [(last.logprobs, self._gradient[last.samples])]
            if self._entropy_gradient is not None:
                roots.append((last.entropies, self._entropy_gradient[last.rows]))
            for shared in last.tree.shared.values():
                roots += shared.gradients()
            roots = [(root, grad) for root, grad in roots if root.requires_grad and root.numel()]
            if roots:
                torch.autograd.backward([r for r, _ in roots], [g for _, g in roots])
            start, stop = last.tree.span
            done(stop - start)


def loss_gradients(
    loss_of: LossOf, samples: Indices, logprobs: Tensor, entropies: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Differentiate the loss of some samples.

    Args:
        loss_of: The loss.
        samples: Their indices.
        logprobs: float32 [samples]; without a graph of its own, as `entropies`.
        entropies: float32 [samples]

    Returns:
        The gradients of both, where the loss depends on them.

    Raises:
        TrainingError: The loss is not finite.
    """
    given = (logprobs.requires_grad_(), entropies.requires_grad_())
    loss = loss_of(samples, *given)
    if not torch.isfinite(loss):
        raise TrainingError(f"the loss is {loss.item()}", fix="Lower the learning rate.")
    by_value, by_entropy = torch.autograd.grad(loss, given, allow_unused=True)
    return by_value, by_entropy
