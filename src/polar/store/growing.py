"""Token ids of a conversation that grows: every prompt is a view of one array, and no copy."""

from __future__ import annotations

import numpy as np

from polar.types import IntArray

__all__ = ["GrowingIds"]

_SMALLEST = 1024


class GrowingIds:
    """An array that is only appended to, so that what was handed out of it stays as it was.

    A conversation of T turns would cost O(T x length) if each prompt had its own copy. Here it
    costs at most four times its final length: the array doubles when it is full, and prompts that
    were handed out before keep the smaller ones alive.

    Args:
        start: int32 [seq]; copied.
    """

    def __init__(self, start: IntArray) -> None:
        self._ids: IntArray = np.empty(max(_SMALLEST, len(start)), dtype=np.int32)
        self._size = 0
        self.append(start)

    def __len__(self) -> int:
        """Count the ids."""
        return self._size

    def append(self, ids: IntArray) -> None:
        """Add ids at the end; amortised O(len(ids))."""
        size = self._size + len(ids)
        if size > len(self._ids):
            grown = np.empty(max(size, 2 * len(self._ids)), dtype=np.int32)
            grown[: self._size] = self._ids[: self._size]
            self._ids = grown
        self._ids[self._size : size] = ids
        self._size = size

    def view(self, start: int, stop: int) -> IntArray:
        """Look at a part of what is there: read-only, since others look at it too."""
        part = self._ids[start:stop]
        part.flags.writeable = False
        return part
