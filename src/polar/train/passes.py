"""The passes of one training step: losses, gradients and updates, minibatch by minibatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polar.train.lockstep import for_each, idle_tree
from polar.train.loss import PolicyLoss, Samples, policy_loss
from polar.train.optimizer import Optimizer
from polar.train.policy import Policy
from polar.train.ranks import Ranks, exposed, together
from polar.train.reference import Reference
from polar.train.settings import TrainSettings
from polar.train.tally import Tally
from polar.train.tree_batch import Indices, TreeBatch
from polar.types import FloatArray

__all__ = ["Minibatch", "Passes"]


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The trees of one optimizer step, or those of them that one rank computes."""

    batches: tuple[TreeBatch, ...]
    advantages: FloatArray
    """float32 [tokens]; of the tokens of all traces, one trace after the other."""
    starts: Indices
    """int64 [traces]; where those of each trace begin."""
    weights: FloatArray
    """float32 [traces]; each trained token's share of the loss."""


@dataclass(frozen=True, slots=True)
class _Before:
    """Logprobs of a batch before the first update: float32 [samples]."""

    old: Tensor | None
    """Absent: those of the pass itself, in which nothing has moved yet."""
    reference: Tensor | None


@dataclass(frozen=True, slots=True)
class Passes:
    """Takes optimizer steps over some minibatches."""

    policy: Policy
    reference: Reference | None
    """What the loss compares with; absent: nothing."""
    optimizer: Optimizer
    settings: TrainSettings
    tally: Tally
    ranks: Ranks
    """Who takes the same steps over other trees."""

    def run(
        self,
        minibatches: Sequence[Minibatch],
        *,
        progress: Callable[[float], None],
        before_update: Callable[[], None],
    ) -> None:
        """Take one optimizer step a minibatch and epoch, or none if any of them fails."""
        passes = [m for _ in range(self.settings.epochs_per_step) for m in minibatches]
        moves = len(passes) > 1  # from the second update on, the policy is not the old one
        befores = self._befores(minibatches, moves=moves)
        work, done = sum(b.token_ids.size for m in passes for b in m.batches), 0

        def advance(nodes: int) -> None:
            nonlocal done
            done += nodes
            progress(done / work)

        with self.optimizer.all_or_nothing(steps=len(passes)):
            for minibatch in passes:

                def learn(batch: TreeBatch, minibatch: Minibatch = minibatch) -> None:
                    self._learn(batch, minibatch, befores[id(batch)], advance)

                lockstep = self.policy.lockstep is not None
                idle = self.policy.idle if lockstep else None
                for_each(minibatch.batches, learn, ranks=self.ranks, idle=idle)
                with together(self.ranks):
                    before_update()
                with exposed(self.ranks):
                    self.tally.add_update(self.optimizer.update())

    def _befores(self, minibatches: Sequence[Minibatch], *, moves: bool) -> dict[int, _Before]:
        """Compute what no update may touch, by the identity of the batch."""
        found: dict[int, _Before] = {}

        def look(batch: TreeBatch) -> None:
            found[id(batch)] = self._before(batch, moves=moves)

        def idle() -> None:
            self._before(idle_tree(), moves=moves)

        batches = [b for m in minibatches for b in m.batches]
        lockstep = self.policy.lockstep is not None
        for_each(batches, look, ranks=self.ranks, idle=idle if lockstep else None)
        return found

    def _before(self, batch: TreeBatch, *, moves: bool) -> _Before:
        reference = None if self.reference is None else self.reference.logprobs(batch)
        if not self.settings.recompute:
            return _Before(self._tensor(batch.engine_logprobs), reference)
        if not moves:
            return _Before(None, reference)
        return _Before(self.policy.measure(batch)[0], reference)

    def _learn(
        self,
        batch: TreeBatch,
        minibatch: Minibatch,
        before: _Before,
        advance: Callable[[int], None],
    ) -> None:
        def loss_of(samples: Indices, logprobs: Tensor, entropies: Tensor) -> Tensor:
            return self._loss(batch, minibatch, before, samples, (logprobs, entropies)).loss

        logprobs, entropies = self.policy.learn(
            batch, loss_of, collect=self.optimizer.collect, advance=advance
        )
        entropies = entropies[self._tensor(batch.sample_rows)]
        everything = np.arange(batch.sample_rows.size)
        result = self._loss(batch, minibatch, before, everything, (logprobs, entropies))
        self.tally.add_batch(batch, logprobs, entropies, result)

    def _loss(
        self,
        batch: TreeBatch,
        minibatch: Minibatch,
        before: _Before,
        samples: Indices,
        computed: tuple[Tensor, Tensor],
    ) -> PolicyLoss:
        """Compute the share of some samples in the loss of the optimizer step."""
        logprobs, entropies = computed
        traces, index = batch.sample_traces[samples], self._tensor(samples)
        tokens = minibatch.starts[traces] + batch.sample_positions[samples]
        told = Samples(
            logprobs=logprobs,
            old_logprobs=logprobs.detach() if before.old is None else before.old[index],
            engine_logprobs=self._tensor(batch.engine_logprobs[samples]),
            advantages=self._tensor(minibatch.advantages[tokens]),
            weights=self._tensor(minibatch.weights[traces]),
            traces=self._tensor(traces),
            entropies=entropies,
            reference_logprobs=None if before.reference is None else before.reference[index],
        )
        return policy_loss(told, self.settings)

    def _tensor(self, values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values).to(self.policy.model.device)
