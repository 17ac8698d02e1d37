"""Where the segments of a packed prefix tree lie, and which rows attend to which."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
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
        runs = [0, *(np.flatnonzero(np.diff(depths) != 1) + 1).tolist()]
        bounds = sorted({*runs, *_branch_points(depths, runs), int(depths.size)})
        segments = map(Segment, bounds, bounds[1:], _subtree_stops(depths, bounds))
        return cls(depths, tuple(segments))

    def segments_of(self, start: int, stop: int) -> Sequence[Segment]:
        """Give the segments that begin in rows `start:stop`, in order."""
        first, end = (bisect_left(self.segments, row, key=_start) for row in (start, stop))
        return self.segments[first:end]


def _start(segment: Segment) -> int:
    return segment.start


def _branch_points(depths: IntArray, runs: Sequence[int]) -> Iterator[int]:
    """Find the rows behind the parents of runs, each row of which descends from the one before.

    The parent of a run is in the last of those before it that begins less deep.
    """
    path: list[tuple[int, int]] = []  # first row and its depth, of runs above the last one
    for row, depth in zip(runs, depths[runs].tolist(), strict=True):
        while path and path[-1][1] >= depth:
            path.pop()
        if path:
            start, above = path[-1]
            yield start + depth - above
        path.append((row, depth))


def _subtree_stops(depths: IntArray, bounds: Sequence[int]) -> list[int]:
    """Find for each segment the first row behind it that is no deeper than its first."""
    *starts, size = bounds
    stops = [size] * len(starts)
    path: list[tuple[int, int]] = []  # index and depth of segments whose end is not yet seen
    for index, depth in enumerate(depths[starts].tolist()):
        while path and path[-1][1] >= depth:
            stops[path.pop()[0]] = starts[index]
        path.append((index, depth))
    return stops
