"""A lean forward pass for models built like Llama, from the parameters of the model itself.

transformers spends most of a decoding step on one CPU outside of matrix products. This pass joins
the products of the same input and keeps the rest to a few operations; residuals, norms, rotation
and attention are in float32 whatever the precision of the products. Whether a model is built like
Llama is decided by comparing the logits of both passes (see `EmbeddedEngine`), not by its name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polar.engines.embedded.linear import Linear
from polar.engines.embedded.step import Step

__all__ = ["FusedPass"]


class FusedPass:
    """Computes logits of a step with copies of the parameters, refreshed after an update.

    Args:
        model: A causal language model.
        dtype: Precision of the matrix products.

    Raises:
        AttributeError: The model lacks a part that Llama has.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._model = model
        self._dtype = dtype
        windows = [
            layer.self_attn.sliding_window
            for layer in model.model.layers
            if hasattr(layer.self_attn, "sliding_window")
        ]
        self.window: int | None = min((width for width in windows if width), default=None)
        """Tokens that a layer would attend to at most, which this pass does not heed."""
        self.refresh()

    def refresh(self) -> None:
        """Copy the parameters anew, into the memory of the earlier copies."""
        body = self._model.model
        self._layers: list[_Layer] = []
        with torch.inference_mode():
            self._embeddings = body.embed_tokens
            self._rotary = body.rotary_emb
            self._norm = _Norm(body.norm)
            self._head = Linear(self._model.lm_head, dtype=self._dtype)
            self._layers += (_Layer(layer, self._dtype) for layer in body.layers)

    def __call__(self, step: Step) -> Tensor:
        """Compute the logits of each run's last token: float32 [runs, vocabulary]."""
        hidden = self._embeddings(step.token_ids).float()  # [rows, hidden]
        cos, sin = self._rotary(hidden, step.positions[None])  # [1, rows, head_dim]
        rotation = cos[0, :, None], _half_negated(sin[0, :, None])
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            rows = step.last_rows if index == last else None  # nothing else is needed behind it
            hidden = layer(index, hidden, rotation, step, rows=rows)
        return self._head(self._norm(hidden)).float()


class _Norm:
    """Root mean square normalisation."""

    def __init__(self, module: Any) -> None:
        self._weight = module.weight.detach().float().clone()
        self._epsilon = module.variance_epsilon

    def __call__(self, rows: Tensor) -> Tensor:
        # Fewer and smaller operations than torch's own rms_norm takes on a CPU.
        norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        normed: Tensor = (
            rows * (norm * norm / rows.shape[-1] + self._epsilon).rsqrt() * self._weight
        )
        return normed


class _Layer:
    """One block: attention and the gated feed-forward part."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        attention, feed = layer.self_attn, layer.mlp
        self._head_dim = attention.head_dim
        self._scale = attention.scaling
        self._before_attention = _Norm(layer.input_layernorm)
        self._qkv = Linear(attention.q_proj, attention.k_proj, attention.v_proj, dtype=dtype)
        self._heads = [size // self._head_dim for size in self._qkv.sizes]
        self._query_norm = _Norm(attention.q_norm) if hasattr(attention, "q_norm") else None
        self._key_norm = _Norm(attention.k_norm) if hasattr(attention, "k_norm") else None
        self._out = Linear(attention.o_proj, dtype=dtype)
        self._before_feed = _Norm(layer.post_attention_layernorm)
        self._gate_up = Linear(feed.gate_proj, feed.up_proj, dtype=dtype)
        self._activation = feed.act_fn
        self._down = Linear(feed.down_proj, dtype=dtype)

    def __call__(
        self,
        index: int,
        hidden: Tensor,
        rotation: tuple[Tensor, Tensor],
        step: Step,
        *,
        rows: Tensor | None,
    ) -> Tensor:
        heads = self._qkv(self._before_attention(hidden)).float()
        heads = heads.view(len(heads), -1, self._head_dim)
        query, key, value = torch.split(heads, self._heads, dim=1)
        if self._query_norm is not None and self._key_norm is not None:
            query, key = self._query_norm(query), self._key_norm(key)
        query = _rotate(query, *rotation).view(len(heads), key.shape[1], -1, self._head_dim)
        key = _rotate(key, *rotation)
        attended = step.attend(index, query, key, value, scale=self._scale)
        if rows is not None:
            hidden, attended = hidden[rows], attended[rows]
        hidden = hidden + self._out(attended)
        gate, up = self._gate_up(self._before_feed(hidden)).chunk(2, dim=-1)
        return hidden + self._down(self._activation(gate) * up)


def _half_negated(sin: Tensor) -> Tensor:
    """Negate the first half, so that a rotation needs no negation of its own."""
    first, second = sin.chunk(2, dim=-1)
    return torch.cat((-first, second), dim=-1)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each head by its position: [rows, heads, head_dim]."""
    return heads * cos + heads.roll(heads.shape[-1] // 2, dims=-1) * sin
