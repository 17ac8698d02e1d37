"""The policy on tree batches: logprobs of the tokens that were sampled, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polar.errors import TrainingError
from polar.train.depth_first import DepthFirst, LossOf
from polar.train.head import sampled_logprobs
from polar.train.lockstep import Lockstep, empty_lesson, idle_tree, learn_at_once
from polar.train.logits import PLAIN, Shaping
from polar.train.pieces import cut_pieces
from polar.train.recompute import Keep, checkpoint_layers
from polar.train.support import last_hidden
from polar.train.tree_batch import TreeBatch
from polar.train.tree_context import Kernel, TreeContext

__all__ = ["Policy"]


def _nothing() -> None:
    """Do nothing."""


def _ignore(_: int) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A model and how it is sampled from."""

    model: PreTrainedModel
    """A causal language model whose attention implementation is `polar_tree`, if it shares
    prefixes."""
    temperature: float = 1.0
    """The sampling temperature; logits are divided by it."""
    logits_per_chunk: int = 256
    """Positions whose logits are in memory at once."""
    checkpoint_above: int | None = None
    """What has more nodes is computed with gradient checkpointing: pieces, those that they descend
    from counted in, and trees that are computed at once."""
    keep: Keep = "products"
    """What the layers keep of others for the backward pass."""
    piece_tokens: int = 512
    """About how many nodes of a tree `learn` computes at once."""
    kernel: Kernel = "blocks"
    """What computes attention."""
    shares_prefixes: bool = True
    """Whether the model can be computed along trees; otherwise batches must hold one sequence."""
    lockstep: Lockstep | None = None
    """Through what all ranks make each pass at once; absent: passes are this process's own."""
    shaping: Shaping = PLAIN
    """What the model does behind its head."""

    def most_nodes(self, at_once: int) -> int | None:
        """Say how large a tree may be if memory holds `at_once` nodes; absent: of any size.

        Of a tree that is computed in pieces, memory holds the path to one of them.
        """
        return None if self.lockstep is None else at_once

    def logprobs(self, batch: TreeBatch) -> tuple[Tensor, Tensor]:
        """Compute the logprob of every sample of a batch at once, with gradient.

        Returns:
            Logprobs float32 [samples], and entropies float32 [rows].

        Raises:
            TrainingError: The model mixes tokens by other means than standard attention.
        """

        def compute() -> tuple[Tensor, Tensor]:
            tree = TreeContext(batch.layout, kernel=self.kernel)
            return self._compute(batch, tree, slice(None), slice(None))

        return compute() if self.lockstep is None else self.lockstep.forward(compute)

    @torch.no_grad()
    def measure(self, batch: TreeBatch) -> tuple[Tensor, Tensor]:
        """Compute the same without gradient, in pieces unless it is in lockstep.

        Raises:
            TrainingError: The model mixes tokens by other means than standard attention.
        """
        if self.lockstep is not None:
            return self.logprobs(batch)
        return self._depth_first(batch).measure(cut_pieces(batch.layout, self.piece_tokens))

    def learn(
        self,
        batch: TreeBatch,
        loss_of: LossOf,
        *,
        collect: Callable[[], None] = _nothing,
        advance: Callable[[int], None] = _ignore,
    ) -> tuple[Tensor, Tensor]:
        """Add the gradient of a loss of the logprobs to the parameters.

        Args:
            batch: The tree; computed in pieces, or in lockstep at once.
            loss_of: The loss, trace by trace.
            collect: Called whenever there are gradients to be moved elsewhere.
            advance: Told as the work goes on how many more nodes are done with.

        Returns:
            Logprobs float32 [samples], and entropies float32 [rows], both without gradient.

        Raises:
            TrainingError: The model mixes tokens by other means than standard attention, or the
                loss is not finite.
        """
        if self.lockstep is not None:
            found = learn_at_once(batch, loss_of, self.logprobs(batch), self.lockstep)
            advance(batch.token_ids.size)
            return found

        def done(nodes: int) -> None:
            collect()
            advance(nodes)

        pieces = cut_pieces(batch.layout, self.piece_tokens)
        return self._depth_first(batch).learn(pieces, loss_of=loss_of, done=done)

    def idle(self) -> None:
        """Make the passes of `learn` with the other ranks, and add nothing to the gradient."""
        self.learn(idle_tree(), empty_lesson)

    def _depth_first(self, batch: TreeBatch) -> DepthFirst:
        return DepthFirst(
            batch,
            compute=lambda tree, samples, rows: self._compute(batch, tree, samples, rows),
            kernel=self.kernel,
            device=self.model.device,
        )

    def _compute(
        self, batch: TreeBatch, tree: TreeContext, samples: slice, rows: slice
    ) -> tuple[Tensor, Tensor]:
        device = self.model.device
        first_row = rows.start or 0
        nodes = torch.from_numpy(batch.logit_nodes[rows] - tree.span[0]).to(device)
        return sampled_logprobs(
            self._hidden(batch, tree)[nodes],
            self.model.get_output_embeddings(),
            rows=torch.from_numpy(batch.sample_rows[samples] - first_row).to(device),
            tokens=torch.from_numpy(batch.sample_tokens[samples]).to(device),
            temperature=self.temperature / self.shaping.scale,
            chunk=self.logits_per_chunk,
            cap=self.shaping.cap_of_products,
        )

    def _hidden(self, batch: TreeBatch, tree: TreeContext) -> Tensor:
        """Last hidden state of every node that is computed: [nodes, hidden_size]."""
        limit = self.checkpoint_above
        held = sum(stop - start for start, stop in tree.key_rows())
        large = limit is not None and held > limit
        # Choosing what to keep takes hold of every operation, so nothing would compile.
        plain = self.kernel == "flex" or not self.shares_prefixes
        keep = "everything" if plain and self.keep == "products" else self.keep
        checkpoint_layers(self.model, "inputs" if large else keep)
        start, stop = tree.span
        tokens = torch.from_numpy(batch.token_ids[start:stop]).long().to(self.model.device)
        if self.shares_prefixes:
            return last_hidden(self.model, tokens, tree)
        if len(batch.layout.segments) != 1:
            raise TrainingError(
                "the model cannot be computed along trees",
                fix="Plan its batches with share=False.",
            )
        hidden: Tensor = self.model.base_model(
            input_ids=tokens[None], use_cache=False
        ).last_hidden_state[0]
        return hidden
