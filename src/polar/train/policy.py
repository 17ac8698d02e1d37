"""The policy's view of a tree batch: logprobs of its samples."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polar.errors import TrainingError
from polar.train.attention import tree_attention
from polar.train.head import sampled_logprobs
from polar.train.tree_batch import TreeBatch

__all__ = ["tree_logprobs"]


def tree_logprobs(
    model: PreTrainedModel, batch: TreeBatch, *, temperature: float = 1.0, chunk: int = 256
) -> tuple[Tensor, Tensor]:
    """Compute the logprob of every sample of a batch, with gradient.

    Args:
        model: A causal language model whose attention implementation is `polar_tree`.
        batch: The tree.
        temperature: The sampling temperature; logits are divided by it.
        chunk: Positions whose logits are in memory at once.

    Returns:
        Logprobs float32 [samples], and entropies float32 [rows] without gradient.

    Raises:
        TrainingError: A layer of the model mixes tokens by other means than attention.
    """
    device = model.device
    layers = model.config.get_text_config().num_hidden_layers
    with tree_attention(batch.layout) as tree:
        hidden = model.base_model(
            input_ids=torch.from_numpy(batch.token_ids).long().to(device)[None],
            position_ids=torch.from_numpy(batch.position_ids).long().to(device)[None],
            use_cache=False,
        ).last_hidden_state[0]
    if tree.layers_seen != layers:
        raise TrainingError(
            f"{layers - tree.layers_seen} of {layers} layers do not use standard attention",
            fix="Train a model without recurrent or linear-attention layers.",
        )
    head = model.get_output_embeddings()
    return sampled_logprobs(
        hidden[torch.from_numpy(batch.logit_nodes).to(device)],
        head.weight,
        head.bias,
        rows=torch.from_numpy(batch.sample_rows).to(device),
        tokens=torch.from_numpy(batch.sample_tokens).to(device),
        temperature=temperature,
        chunk=chunk,
    )
