"""Attention over a packed prefix tree, for any transformers model with standard attention.

A segment's descendants lie right behind it (see `TreeLayout`), so the attention of a whole tree is
a sum of dense blocks without masks. Each block yields its output and the log-sum-exp of its scores;
blocks of the same queries are merged by these. The backward pass needs only the merged output and
log-sum-exp, hence memory is linear in the number of nodes, and no key or value is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from polar.errors import TrainingError
from polar.train.attention_blocks import Block, block_backward, block_forward
from polar.train.layout import TreeLayout

__all__ = [
    "ATTENTION_NAME",
    "TreeContext",
    "recompute_contexts",
    "tree_attention",
    "tree_attention_forward",
]

ATTENTION_NAME = "polar_tree"


@dataclass(slots=True)
class TreeContext:
    """The tree that is being computed, and how many layers have asked for it."""

    layout: TreeLayout
    layers_seen: int = 0
    blocks: dict[int | None, list[Block]] = field(default_factory=dict)

    def blocks_for(self, window: int | None) -> list[Block]:
        """Blocks of query and key rows that see each other under a sliding window."""
        if window not in self.blocks:
            self.blocks[window] = list(_blocks(self.layout, window))
        return self.blocks[window]


_current: ContextVar[TreeContext] = ContextVar("polar_tree_layout")


@contextmanager
def tree_attention(layout: TreeLayout) -> Iterator[TreeContext]:
    """Make `layout` the tree of every `polar_tree` attention called inside."""
    context = TreeContext(layout)
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def recompute_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Contexts for a checkpointed layer's forward pass and its recomputation in the backward pass.

    The backward pass runs after `tree_attention` was left, so the recomputation enters it again.
    """
    context = _current.get()
    return nullcontext(), tree_attention(context.layout)


def tree_attention_forward(  # noqa: PLR0913 - the signature is transformers'
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
    """Attend along the tree; the signature is that of transformers' attention functions.

    Args:
        query: [1, heads, nodes, head_dim].
        key: [1, kv_heads, nodes, head_dim].
        value: [1, kv_heads, nodes, head_dim].

    Returns:
        [1, nodes, heads, head_dim].

    Raises:
        TrainingError: The model asks for what is not implemented here (dropout, soft caps, sinks).
    """
    _refuse(attention_mask, dropout, kwargs)
    try:
        context = _current.get()
    except LookupError:
        raise TrainingError(
            "tree attention was called outside a tree batch",
            fix="Wrap the forward pass in `with tree_attention(layout):`.",
        ) from None
    context.layers_seen += 1
    kv_heads, nodes, head_dim = key.shape[1:]
    scale = head_dim**-0.5 if scaling is None else scaling
    grouped = query[0].unflatten(0, (kv_heads, -1))  # [kv_heads, group, nodes, head_dim]
    output = _TreeAttention.apply(
        grouped, key[0], value[0], context.blocks_for(sliding_window), scale
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


def _blocks(layout: TreeLayout, window: int | None) -> Iterator[Block]:
    """Blocks in an order where each row's own block comes before its ancestors' blocks."""
    depths = torch.from_numpy(layout.depths)
    for s in layout.segments:
        yield Block.cut(
            slice(s.start, s.stop), slice(s.start, s.stop), depths, window=window, own=True
        )
    for s in layout.segments:
        if s.subtree_stop > s.stop:
            rows = slice(s.stop, s.subtree_stop)
            yield Block.cut(rows, slice(s.start, s.stop), depths, window=window, own=False)


class _TreeAttention(torch.autograd.Function):
    """Sum of attention blocks; saves the merged output and log-sum-exp only."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: list[Block], scale: float
    ) -> Tensor:
        kv_heads, group, nodes, _ = query.shape
        output = query.new_empty(nodes, kv_heads, group, value.shape[-1], dtype=_wide(query))
        output = output.permute(1, 2, 0, 3)
        lse = output.new_empty(kv_heads, group, nodes)
        for block in blocks:
            part, part_lse = block_forward(
                query[:, :, block.rows], key[:, block.keys], value[:, block.keys], block, scale
            )
            if block.own:
                output[:, :, block.rows], lse[:, :, block.rows] = part, part_lse
            else:
                _merge(output[:, :, block.rows], lse[:, :, block.rows], part, part_lse)
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.blocks, ctx.scale = blocks, scale
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[override]
        query, key, value, output, lse = ctx.saved_tensors
        grads = [torch.zeros_like(x, dtype=_wide(x)) for x in (query, key, value)]
        grad_query, grad_key, grad_value = grads
        for block in ctx.blocks:
            rows, keys = block.rows, block.keys
            d_query, d_key, d_value = block_backward(
                grad_output[:, :, rows],
                query[:, :, rows],
                key[:, keys],
                value[:, keys],
                output[:, :, rows],
                lse[:, :, rows],
                block,
                ctx.scale,
            )
            grad_query[:, :, rows] += d_query
            grad_key[:, keys] += d_key
            grad_value[:, keys] += d_value
        return (
            grad_query.to(query.dtype),
            grad_key.to(key.dtype),
            grad_value.to(value.dtype),
            None,
            None,
        )


def _merge(output: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Add a block's attention to what its queries have gathered so far, in place."""
    merged = torch.logaddexp(lse, part_lse)
    output.mul_(torch.exp(lse - merged).unsqueeze(-1))
    output.add_(part * torch.exp(part_lse - merged).unsqueeze(-1))
    lse.copy_(merged)


def _wide(tensor: Tensor) -> torch.dtype:
    """The dtype to accumulate in."""
    return torch.promote_types(tensor.dtype, torch.float32)


AttentionInterface.register(ATTENTION_NAME, tree_attention_forward)
