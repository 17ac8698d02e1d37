"""Trees dealt to ranks, so that all have about as much to compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polar.train.tree_batch import TreeBatch

__all__ = ["Hands", "deal"]

Hands = tuple[tuple[TreeBatch, ...], ...]
"""The trees of each rank."""

_EVEN = (1.0, 1.15, 0.5, 1.35, 1.6, 1.9, 2.4, 3.0, 4.0, 5.5, 7.5)
"""Sizes of trees that are tried, in shares of a rank's part of all tokens. The larger ones are for
long prompts, which each part of a tree computes again."""


def deal(
    plan: Callable[[int | None], Sequence[TreeBatch]], *, max_tokens: int | None, ranks: int
) -> Hands:
    """Divide an optimizer step's trees among ranks.

    Trees are cut smaller than memory asks for where the most burdened rank then has less to do,
    the prefixes that are computed twice included. A single trace is never divided: a rank may get
    nothing.

    Args:
        plan: Makes trees of at most so many tokens.
        max_tokens: What memory allows; absent: any number.
        ranks: Among how many.

    Returns:
        The trees of each rank; the first has the most to do.
    """
    best = _dealt(plan(max_tokens), ranks)
    if ranks == 1:
        return best
    even = sum(map(_load, best)) / ranks
    for share in (share for share in _EVEN if share < ranks):
        size = max(1, int(even * share))
        hands = _dealt(plan(size if max_tokens is None else min(max_tokens, size)), ranks)
        if _load(hands[0]) < _load(best[0]):
            best = hands
    return best


def _dealt(batches: Sequence[TreeBatch], ranks: int) -> Hands:
    """Give the largest that is left to whom has the least, and keep each hand in planned order."""
    if ranks == 1:
        return (tuple(batches),)
    loads, hands = [0] * ranks, [list[int]() for _ in range(ranks)]
    for index in sorted(range(len(batches)), key=lambda i: -batches[i].token_ids.size):
        least = loads.index(min(loads))
        loads[least] += batches[index].token_ids.size
        hands[least].append(index)
    dealt = [tuple(batches[i] for i in sorted(hand)) for hand in hands]
    return tuple(sorted(dealt, key=_load, reverse=True))


def _load(hand: Sequence[TreeBatch]) -> int:
    return sum(batch.token_ids.size for batch in hand)
