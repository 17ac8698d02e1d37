"""Where the segments of a packed prefix tree lie, and which rows attend to which."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from polar.types import IntArray

__all__ = ["Segment", "TreeLayout"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of nodes without a branch, and the rows of everything that grows out of it.

    In depth-first order the descendants of a segment are the rows right after it, so attention in
    a tree is two kinds of dense blocks: rows `start:stop` on themselves, causally, and rows
    `stop:subtree_stop` on `start:stop`, fully.
    """

    start: int
    stop: int
    subtree_stop: int


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """The segments of a forest of prefix trees, in depth-first order."""

    depths: IntArray
    """int32 [nodes]; position of each node in the sequences it belongs to."""
    segments: tuple[Segment, ...]

    @classmethod
    def from_depths(cls, depths: IntArray) -> TreeLayout:
        """Find the segments; depth-first order and depths determine the tree.

        Args:
            depths: int32 [nodes]; 0 for roots. A node's parent is the last node before it that
                is one less deep.
        """
        jumps = np.flatnonzero(np.diff(depths) != 1) + 1
        starts = {0, *jumps.tolist()}
        for row in jumps.tolist():
            before = np.flatnonzero(depths[:row] == depths[row] - 1)
            if before.size:
                starts.add(int(before[-1]) + 1)
        bounds = [*sorted(starts), int(depths.size)]
        segments = tuple(
            Segment(start, stop, _subtree_stop(depths, start, stop))
            for start, stop in itertools.pairwise(bounds)
        )
        return cls(depths, segments)


def _subtree_stop(depths: IntArray, start: int, stop: int) -> int:
    """First row from `stop` on that is no deeper than the segment's first node."""
    shallow = depths[stop:] <= depths[start]
    return stop + int(shallow.argmax()) if shallow.any() else int(depths.size)
