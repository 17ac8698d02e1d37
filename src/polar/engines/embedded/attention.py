"""Attention of a few query rows to a stretch of the cache, without copying keys for each head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["attend_one", "attend_run", "causal_bias"]


def attend_one(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Let one token attend to its sequence; the heads of a group share one product.

    Args:
        query: [kv_heads, group, head_dim].
        keys: [kv_heads, context, head_dim], up to and with the token itself.
        values: As `keys`.
        scale: Factor of the scores.

    Returns:
        [kv_heads, group, head_dim].
    """
    return F.scaled_dot_product_attention(query[None], keys[None], values[None], scale=scale)[0]


def attend_run(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float
) -> Tensor:
    """Let successive tokens attend to what precedes each of them.

    Args:
        query: [tokens, kv_heads, group, head_dim].
        keys: [kv_heads, context, head_dim], up to and with the last token.
        values: As `keys`.
        bias: From `causal_bias`.
        scale: Factor of the scores.

    Returns:
        [tokens, kv_heads, group, head_dim].
    """
    output = F.scaled_dot_product_attention(
        query.flatten(1, 2).transpose(0, 1)[None],  # [1, heads, tokens, head_dim]
        keys[None],
        values[None],
        attn_mask=bias,
        is_causal=bias is None,
        scale=scale,
        enable_gqa=True,
    )
    return output[0].transpose(0, 1).unflatten(1, query.shape[1:3])


def causal_bias(start: int, length: int) -> Tensor | None:
    """Make what is added to the scores of `length` tokens that follow `start` cached ones.

    Returns:
        float32 [length, start + length], or nothing where the plain causal mask says the same.
    """
    if start == 0:
        return None
    visible = torch.ones(length, start + length, dtype=torch.bool).tril_(start)
    return torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)
