"""Attention over a packed prefix tree, for any transformers model with standard attention.

A segment's descendants lie right behind it (see `TreeLayout`), so the attention of a whole tree is
a sum of dense blocks without masks. Each block yields its output and the log-sum-exp of its scores;
blocks of the same queries are merged by these. The backward pass needs only the merged output and
log-sum-exp, hence memory is linear in the number of nodes, and no key or value is copied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from polar.errors import TrainingError
from polar.train.attention_blocks import Block, block_backward, block_forward
from polar.train.flex import flex_attend
from polar.train.tree_context import TreeContext, current_tree

__all__ = ["ATTENTION_NAME", "tree_attention_forward"]

ATTENTION_NAME = "polar_tree"


def tree_attention_forward(  # noqa: PLR0913, PLR0917 - the signature is transformers'
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend along the tree of the surrounding `tree_attention`.

    Args:
        module: The attention layer.
        query: [1, heads, nodes, head_dim].
        key: [1, kv_heads, nodes, head_dim].
        value: [1, kv_heads, nodes, head_dim].
        attention_mask: Must be absent: the tree says what is visible.
        scaling: Factor of the scores; absent: `head_dim**-0.5`.
        dropout: Must be 0.
        sliding_window: Positions that a query sees, itself included; absent: all.
        **kwargs: What else the model's layers pass; soft caps and sinks are refused.

    Returns:
        Output [1, nodes, heads, head_dim], and no attention weights.

    Raises:
        TrainingError: The model asks for what is not implemented here, or there is no tree.
    """
    _refuse(attention_mask, dropout, kwargs)
    context = current_tree()
    if context is None:
        raise TrainingError(
            "tree attention was called outside a tree batch",
            fix="Wrap the forward pass in `with tree_attention(layout):`.",
        )
    context.layers_seen += 1
    kv_heads, nodes, head_dim = key.shape[1:]
    scale = head_dim**-0.5 if scaling is None else scaling
    keys, values = context.with_past(module, key[0], value[0])
    if context.kernel == "flex":
        flex = flex_attend(query[0], keys, values, context, sliding_window, scale)
        return flex.transpose(0, 1)[None], None
    grouped = query[0].reshape(kv_heads, -1, nodes, head_dim)  # [kv_heads, group, nodes, head_dim]
    output: Tensor = _TreeAttention.apply(  # type: ignore[no-untyped-call]
        grouped, keys, values, context.blocks_for(sliding_window), scale, context
    )
    return output.permute(2, 0, 1, 3).reshape(1, nodes, -1, value.shape[-1]), None


def _refuse(attention_mask: Tensor | None, dropout: float, kwargs: dict[str, Any]) -> None:
    asked = [name for name in ("softcap", "s_aux") if kwargs.get(name) is not None]
    if dropout > 0.0:
        asked.append("dropout")
    if attention_mask is not None:
        asked.append("an attention mask")
    if asked:
        raise TrainingError(
            f"the model's attention uses {', '.join(asked)}, which tree batches cannot honour",
            fix="Train a model with standard attention.",
        )


class _TreeAttention(torch.autograd.Function):
    """Sum of attention blocks; saves the merged output and log-sum-exp only.

    Computes in float32 at least: on CPU the fused kernel's bfloat16 form is no faster, and for
    short segments twice slower.
    """

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - autograd passes inputs by position
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        blocks: list[Block],
        scale: float,
        tree: TreeContext,
    ) -> Tensor:
        if tree.replay and tree.kept:
            output, lse = tree.kept.pop(0)
        else:
            output, lse = _attend(_widen(query), _widen(key), _widen(value), blocks, scale)
            output = output.to(query.dtype)
            if tree.kept is not None:
                tree.kept.append((output.detach(), lse))
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.blocks, ctx.scale = blocks, scale
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        *given, output, lse = ctx.saved_tensors
        query, key, value, output, grad_output = (_widen(x) for x in (*given, output, grad_output))
        grad_query, grad_key, grad_value = (torch.zeros_like(x) for x in (query, key, value))
        for block in ctx.blocks:
            rows, keys = block.rows, block.keys
            d_query, d_key, d_value = block_backward(
                grad_output[:, :, rows],
                (query[:, :, rows], key[:, keys], value[:, keys]),
                (output[:, :, rows], lse[:, :, rows]),
                block,
                ctx.scale,
            )
            grad_query[:, :, rows] += d_query
            grad_key[:, keys] += d_key
            grad_value[:, keys] += d_value
        grads = (grad_query, grad_key, grad_value)
        return *(g.to(x.dtype) for g, x in zip(grads, given, strict=True)), None, None, None


def _attend(
    query: Tensor, key: Tensor, value: Tensor, blocks: list[Block], scale: float
) -> tuple[Tensor, Tensor]:
    """Compute all blocks: output [kv_heads, group, nodes, head_dim], log-sum-exp without the last.

    The output lies in memory as the model's next projection reads it.
    """
    kv_heads, group, nodes, _ = query.shape
    output = query.new_empty(nodes, kv_heads, group, value.shape[-1]).permute(1, 2, 0, 3)
    lse = query.new_empty(kv_heads, group, nodes)
    for block in blocks:
        part, part_lse = block_forward(
            query[:, :, block.rows], key[:, block.keys], value[:, block.keys], block, scale
        )
        if block.own:
            output[:, :, block.rows], lse[:, :, block.rows] = part, part_lse
        else:
            _merge(output[:, :, block.rows], lse[:, :, block.rows], part, part_lse)
    return output, lse


def _merge(output: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Add a block's attention to what its queries have gathered so far, in place."""
    merged = torch.logaddexp(lse, part_lse)
    output.mul_(torch.exp(lse - merged).unsqueeze(-1))
    output.add_(part * torch.exp(part_lse - merged).unsqueeze(-1))
    lse.copy_(merged)


def _widen(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


AttentionInterface.register(ATTENTION_NAME, tree_attention_forward)
