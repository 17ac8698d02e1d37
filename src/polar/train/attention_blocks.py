"""One dense block of attention, forward and backward: a fused kernel on CPU, matmuls elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Block", "block_backward", "block_forward"]

_FUSED_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Block:
    """Query rows that attend to key rows."""

    rows: slice
    keys: slice
    own: bool
    """Whether rows and keys are the same segment, and attention in it causal."""
    hidden: Tensor | None = None
    """bool [rows, keys]; pairs beyond the sliding window (and, in an own block, the future)."""

    @classmethod
    def cut(
        cls,
        rows: slice,
        keys: slice,
        depths: tuple[Tensor, Tensor],
        *,
        window: int | None,
        own: bool,
    ) -> Block:
        """Make a block, with a mask only where the window ends inside it.

        Args:
            rows: Query rows.
            keys: Key rows, all of them ancestors-or-self of all the query rows.
            depths: int32 [rows] and [keys]; positions of both.
            window: A query sees this many positions, itself included; absent: all.
            own: Whether rows and keys are the same segment.
        """
        below, above = depths
        if window is None or int(below.max() - above.min()) < window:
            return cls(rows, keys, own)
        distance = below[:, None] - above[None, :]
        hidden = distance >= window
        return cls(rows, keys, own, hidden | (distance < 0) if own else hidden)


def block_forward(
    query: Tensor, key: Tensor, value: Tensor, block: Block, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend within one block.

    Args:
        query: [kv_heads, group, rows, head_dim].
        key: [kv_heads, keys, head_dim].
        value: [kv_heads, keys, head_dim].
        block: Which pairs are visible.
        scale: Factor of the scores.

    Returns:
        Output [kv_heads, group, rows, head_dim], and log-sum-exp of the scores, at least float32
        [kv_heads, group, rows]; a row that sees no key has output 0 and log-sum-exp -inf.
    """
    if _fused(query, block):
        keys, values = _per_group(key, query), _per_group(value, query)
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys, values, 0.0, block.own, scale=scale
        )
        return output, lse
    scores = _scores(query, key, block, scale)
    lse = scores.logsumexp(-1)
    weights = _weights(scores, lse).to(value.dtype)
    return weights @ value[:, None], lse


def block_backward(
    grad_output: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    merged: tuple[Tensor, Tensor],
    block: Block,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a block's share of the gradients of query, key and value.

    Args:
        grad_output: [kv_heads, group, rows, head_dim]; of the output merged over all blocks.
        inputs: Query, key and value as in `block_forward`.
        merged: Output and log-sum-exp as from `block_forward`, merged over all blocks of the rows.
        block: Which pairs are visible.
        scale: Factor of the scores.
    """
    query, key, value = inputs
    output, lse = merged
    if _fused(query, block):
        keys, values = _per_group(key, query), _per_group(value, query)
        d_query, d_key, d_value = (
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad_output, query, keys, values, output, lse, 0.0, block.own, scale=scale
            )
        )
        return d_query, d_key.sum(1), d_value.sum(1)
    weights = _weights(_scores(query, key, block, scale), lse)
    wide = weights.dtype
    grad = grad_output.to(wide)
    d_weights = grad @ value[:, None].mT.to(wide)
    delta = (grad * output.to(wide)).sum(-1, keepdim=True)
    d_scores = weights * (d_weights - delta) * scale
    d_query = d_scores @ key[:, None].to(wide)
    d_key = (d_scores.mT @ query.to(wide)).sum(1)
    d_value = (weights.mT @ grad).sum(1)
    return d_query, d_key, d_value


def _fused(query: Tensor, block: Block) -> bool:
    return query.device.type == "cpu" and query.dtype in _FUSED_DTYPES and block.hidden is None


def _per_group(tensor: Tensor, query: Tensor) -> Tensor:
    """View keys or values once for each query head of their group, without a copy."""
    return tensor[:, None].expand(-1, query.shape[1], -1, -1)


def _scores(query: Tensor, key: Tensor, block: Block, scale: float) -> Tensor:
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) @ key[:, None].mT.to(wide)) * scale
    hidden = block.hidden
    if hidden is None and block.own:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores if hidden is None else scores.masked_fill(hidden.to(scores.device), -torch.inf)


def _weights(scores: Tensor, lse: Tensor) -> Tensor:
    """Softmax weights under a log-sum-exp that may reach beyond this block."""
    return torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1))
