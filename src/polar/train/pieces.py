"""A packed tree in pieces, so that only the path to the piece at hand is in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from polar.train.layout import TreeLayout

__all__ = ["Piece", "cut_pieces"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a tree that are computed at once."""

    start: int
    stop: int
    until: int
    """Rows from here on do not descend from the piece."""


def cut_pieces(layout: TreeLayout, size: int) -> list[Piece]:
    """Cut a tree into runs of whole segments, each of about `size` rows.

    Every row is in one piece, and a piece comes after those its rows descend from. Of the places
    where a piece of half to the whole size can end, it ends at the one nearest to a root, for
    there the most is finished. A segment is never cut, however long.
    """
    starts = [s.start for s in layout.segments]
    reach = [s.subtree_stop for s in layout.segments]
    return [
        Piece(a, b, max(reach[bisect_left(starts, a) : bisect_left(starts, b)]))
        for a, b in _bounds(layout, size)
    ]


def _bounds(layout: TreeLayout, size: int) -> Iterator[tuple[int, int]]:
    ends = [s.stop for s in layout.segments]
    depth = np.append(layout.depths, -1)  # of the row that follows an end
    start = 0
    while start < ends[-1]:
        least = bisect_left(ends, start + (size + 1) // 2)
        fitting = ends[least : bisect_right(ends, start + size)]
        if ends[-1] - start <= size:
            stop = ends[-1]
        elif fitting:
            stop = min(fitting, key=lambda end: (depth[end], -end))
        else:
            stop = ends[min(least, len(ends) - 1)]
        yield start, stop
        start = stop
