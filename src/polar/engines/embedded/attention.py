"""Attention of a few query rows to a stretch of the cache, without copying keys for each head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["attend_run", "causal_bias", "decode"]


def decode(  # noqa: PLR0913 - a kernel's operands
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    slots: Tensor,
    lengths: Tensor,
    scale: float,
) -> Tensor:
    """Store the new keys and values of some rows and let each attend; see `native.Decode`.

    The query heads of a group stand as rows of one product, so that no key is copied for each.
    """
    keys[slots, :, lengths - 1] = key
    values[slots, :, lengths - 1] = value
    output = torch.empty_like(query)
    for row, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
        output[row] = F.scaled_dot_product_attention(
            query[row, None],
            keys[slot, None, :, :length],
            values[slot, None, :, :length],
            scale=scale,
        )[0]
    return output


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
    output: Tensor = F.scaled_dot_product_attention(
        query.flatten(1, 2).transpose(0, 1)[None],  # [1, heads, tokens, head_dim]
        keys[None],
        values[None],
        attn_mask=bias,
        is_causal=bias is None,
        scale=scale,
        enable_gqa=True,
    )
    return output[0].transpose(0, 1).reshape(query.shape)


def causal_bias(start: int, length: int) -> Tensor | None:
    """Make what is added to the scores of `length` tokens that follow `start` cached ones.

    Returns:
        float32 [length, start + length], or nothing where the plain causal mask says the same.
    """
    if start == 0:
        return None
    visible = torch.ones(length, start + length, dtype=torch.bool).tril_(start)
    return torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)
