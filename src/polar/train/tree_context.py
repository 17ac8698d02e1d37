"""What the attention layers of a forward pass need to know of the tree that is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from polar.train.attention_blocks import Block
from polar.train.layout import Segment, TreeLayout
from polar.train.pieces import Piece

__all__ = ["KeptOutput", "Kernel", "Shared", "TreeContext", "current_tree", "tree_attention"]

Kernel = Literal["blocks", "flex"]
"""Dense blocks, each by the fastest means at hand; or FlexAttention, for GPUs."""

KeptOutput = tuple[Tensor, Tensor]
"""Output and log-sum-exp of one attention layer."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Keys and values of one layer of a piece, which later pieces attend to.

    The later pieces see copies that end the graph. When they are done, the gradients of the copies
    are the gradients of the originals.
    """

    key: Tensor
    """[kv_heads, rows, head_dim]; with the graph of the piece, as `value`."""
    value: Tensor
    key_copy: Tensor
    value_copy: Tensor

    @classmethod
    def of(cls, key: Tensor, value: Tensor) -> Shared:
        """Split a piece's keys and values from its graph."""
        return cls(key, value, *(x.detach().requires_grad_(x.requires_grad) for x in (key, value)))

    def gradients(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Give the originals that later pieces used, each with its gradient."""
        for original, copied in ((self.key, self.key_copy), (self.value, self.value_copy)):
            if copied.grad is not None:
                yield original, copied.grad


@dataclass(slots=True)
class TreeContext:
    """The tree, or the piece of it, that is being computed."""

    layout: TreeLayout
    piece: Piece | None = None
    """The rows that are computed; absent: all."""
    past: Sequence[TreeContext] = ()
    """The earlier pieces that rows of this one may descend from, in order."""
    kernel: Kernel = "blocks"
    """What computes attention."""
    layers_seen: int = 0
    """How many layers have asked for the tree."""
    shared: dict[nn.Module, Shared] = field(default_factory=dict)
    """What later pieces see of this one, by layer."""
    kept: list[KeptOutput] | None = None
    """Where the outputs of a layer that is computed again later are kept; absent: nowhere."""
    replay: bool = False
    """Whether the layer is computed again, and takes its output from `kept`."""
    masks: dict[int | None, Any] = field(default_factory=dict)
    """FlexAttention's block masks, by sliding window."""
    _blocks: dict[int | None, list[Block]] = field(default_factory=dict)

    @property
    def span(self) -> tuple[int, int]:
        """First row that is computed, and the row after the last."""
        piece = self.piece
        return (0, int(self.layout.depths.size)) if piece is None else (piece.start, piece.stop)

    def with_past(self, layer: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put the past's keys and values of a layer before its own [kv_heads, rows, head_dim]."""
        own = (key, value)
        if self.past:
            seen = [p.shared[layer] for p in self.past]
            key = torch.cat([*(s.key_copy for s in seen), key], 1)
            value = torch.cat([*(s.value_copy for s in seen), value], 1)
        if self.piece is not None and self.piece.until > self.piece.stop and not self.replay:
            self.shared[layer] = Shared.of(*own)
        return key, value

    def key_rows(self) -> list[tuple[int, int]]:
        """Ranges of the tree's rows whose keys are there, in order."""
        return [*(p.span for p in self.past), self.span]

    def blocks_for(self, window: int | None) -> list[Block]:
        """Blocks of query and key rows that see each other under a sliding window."""
        if window not in self._blocks:
            self._blocks[window] = list(self._cut_blocks(window))
        return self._blocks[window]

    def _cut_blocks(self, window: int | None) -> Iterator[Block]:
        """Give each row's own block before its ancestors' blocks."""
        start, stop = self.span
        offset, segments = 0, []
        for first, end in self.key_rows():
            segments += [
                (s, slice(s.start - first + offset, s.stop - first + offset))
                for s in self.layout.segments_of(first, end)
            ]
            offset += end - first
        for s, keys in segments:
            if s.start >= start:
                rows = slice(s.start - start, s.stop - start)
                yield self._block(rows, keys, s, window, own=True)
        for s, keys in segments:
            first, end = max(s.stop, start), min(s.subtree_stop, stop)
            if first < end:
                rows = slice(first - start, end - start)
                yield self._block(rows, keys, s, window, own=False)

    def _block(
        self, rows: slice, keys: slice, segment: Segment, window: int | None, *, own: bool
    ) -> Block:
        start = self.span[0]
        depths = self.layout.depths
        below = torch.from_numpy(depths[start + rows.start : start + rows.stop])
        above = torch.from_numpy(depths[segment.start : segment.stop])
        return Block.cut(rows, keys, (below, above), window=window, own=own)


_current: ContextVar[TreeContext] = ContextVar("polar_tree_layout")


def current_tree() -> TreeContext | None:
    """Give the tree of the surrounding `tree_attention`, if there is one."""
    return _current.get(None)


@contextmanager
def tree_attention(tree: TreeLayout | TreeContext) -> Iterator[TreeContext]:
    """Make `tree` the tree of every `polar_tree` attention called inside."""
    context = tree if isinstance(tree, TreeContext) else TreeContext(tree)
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
