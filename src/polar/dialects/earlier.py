"""What was read of a conversation's earlier requests: each request brings all of them again."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

__all__ = ["Earlier"]

T = TypeVar("T")

_KEPT = 4


class Earlier(Generic[T]):
    """The messages of a few late requests, as JSON and as read.

    Equal JSON is read to equal messages, so that only what a request appends has to be read. The
    messages it shares with an earlier one are the very same objects, which makes comparing them
    cheap for everyone after.
    """

    def __init__(self) -> None:
        self._requests: list[tuple[list[Any], tuple[T, ...]]] = []

    def common(self, raw: list[Any]) -> tuple[int, tuple[T, ...]]:
        """Find an earlier request that began alike.

        Returns:
            How many items of JSON the two have in common, and all that was read of the earlier.
        """
        for before, read in self._requests:
            if before[:1] == raw[:1]:
                return _common(before, raw), read
        return 0, ()

    def keep(self, raw: list[Any], read: tuple[T, ...]) -> None:
        """Keep what was read, in place of what began alike."""
        others = [request for request in self._requests if request[0][:1] != raw[:1]]
        self._requests = [(raw, read), *others][:_KEPT]


def _common(before: list[Any], raw: list[Any]) -> int:
    if raw[: len(before)] == before:
        return len(before)
    pairs = zip(before, raw, strict=False)
    differing = (number for number, (one, other) in enumerate(pairs) if one != other)
    return next(differing, min(len(before), len(raw)))
