"""The policy on tree batches: logprobs of the tokens that were sampled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polar.errors import TrainingError
from polar.train.attention import checkpoint_layers, tree_attention
from polar.train.head import sampled_logprobs
from polar.train.tree_batch import TreeBatch

__all__ = ["Policy"]


@dataclass(frozen=True, slots=True)
class Policy:
    """A model and how it is sampled from."""

    model: PreTrainedModel
    """A causal language model whose attention implementation is `polar_tree`."""
    temperature: float = 1.0
    """The sampling temperature; logits are divided by it."""
    logits_per_chunk: int = 256
    """Positions whose logits are in memory at once."""
    checkpoint_above: int | None = None
    """Trees with more nodes are computed with gradient checkpointing."""

    def logprobs(self, batch: TreeBatch) -> tuple[Tensor, Tensor]:
        """Compute the logprob of every sample of a batch, with gradient.

        Returns:
            Logprobs float32 [samples], and entropies float32 [rows] without gradient.

        Raises:
            TrainingError: The model mixes tokens by other means than standard attention.
        """
        device = self.model.device
        return sampled_logprobs(
            self._hidden(batch)[torch.from_numpy(batch.logit_nodes).to(device)],
            self.model.get_output_embeddings(),
            rows=torch.from_numpy(batch.sample_rows).to(device),
            tokens=torch.from_numpy(batch.sample_tokens).to(device),
            temperature=self.temperature,
            chunk=self.logits_per_chunk,
        )

    def _hidden(self, batch: TreeBatch) -> Tensor:
        """Last hidden state of every node: [nodes, hidden_size]."""
        layers = self.model.config.get_text_config().num_hidden_layers
        limit = self.checkpoint_above
        checkpoint_layers(self.model, limit is not None and batch.token_ids.size > limit)
        with tree_attention(batch.layout) as tree:
            hidden: Tensor = self.model.base_model(
                input_ids=torch.from_numpy(batch.token_ids).long().to(self.model.device)[None],
                position_ids=torch.from_numpy(batch.position_ids)
                .long()
                .to(self.model.device)[None],
                use_cache=False,
            ).last_hidden_state[0]
        if tree.layers_seen != layers:
            raise TrainingError(
                f"{layers - tree.layers_seen} of {layers} layers do not use standard attention",
                fix="Train a model without recurrent or linear-attention layers.",
            )
        return hidden
