"""Tree attention by FlexAttention: on a GPU one fused kernel, which skips what the tree hides.

A key is seen by the rows from its own to the end of its segment's subtree. So the mask of a tree is
two comparisons of row numbers (and one of depths under a sliding window), and no mask is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from polar.train.tree_context import TreeContext

__all__ = ["SMALLEST_HEAD", "flex_attend", "visible_pairs"]

SMALLEST_HEAD = 16
"""FlexAttention's kernels need heads of at least this size."""

_NO_WINDOW = 2**31 - 1


def flex_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tree: TreeContext,
    window: int | None,
    scale: float,
) -> Tensor:
    """Attend along a tree, or along a piece of it and its past.

    Args:
        query: [heads, rows, head_dim].
        key: [kv_heads, keys, head_dim]; those of the past first.
        value: [kv_heads, keys, head_dim].
        tree: What is computed.
        window: Positions that a query sees, itself included; absent: all.
        scale: Factor of the scores.

    Returns:
        [heads, rows, head_dim]; differentiable on a GPU.
    """
    if window not in tree.masks:
        tree.masks[window] = _block_mask(tree, window, query.device)
    attend = _compiled() if query.device.type == "cuda" else flex_attention
    output: Tensor = attend(
        query[None],
        key[None],
        value[None],
        block_mask=tree.masks[window],
        scale=scale,
        enable_gqa=query.shape[0] != key.shape[0],
    )
    return output[0]


def visible_pairs(
    tree: TreeContext, window: int | None, device: torch.device
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Make the function that says whether a query sees a key, by their indices."""
    layout = tree.layout
    reach = np.empty(layout.depths.size, np.int32)
    for segment in layout.segments:
        reach[segment.start : segment.stop] = segment.subtree_stop
    seen = np.concatenate([np.arange(*span) for span in tree.key_rows()]).astype(np.int32)
    own = np.arange(*tree.span).astype(np.int32)
    arrays = (own, seen, reach[seen], layout.depths[own], layout.depths[seen])
    rows, keys, ends, depths, key_depths = (torch.from_numpy(a).to(device) for a in arrays)
    # A tensor, not a number: numbers are compiled in, once for each window.
    limit = torch.tensor(_NO_WINDOW if window is None else window, device=device)

    def visible(_: Tensor, __: Tensor, q: Tensor, k: Tensor) -> Tensor:
        below = (keys[k] <= rows[q]) & (rows[q] < ends[k])
        return below & (depths[q] - key_depths[k] < limit)

    return visible


def _block_mask(tree: TreeContext, window: int | None, device: torch.device) -> BlockMask:
    start, stop = tree.span
    keys = sum(end - first for first, end in tree.key_rows())
    visible = visible_pairs(tree, window, device)
    return create_block_mask(visible, None, None, stop - start, keys, device=device)


@cache
def _compiled() -> Any:
    # The whole graph or an error: without compiling, all scores would be in memory at once.
    return torch.compile(flex_attention, fullgraph=True)
