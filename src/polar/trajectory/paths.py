"""A path of tokens and the calls that are trained in it, before it is laid out as a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polar.types import Call, IntArray, Trace

__all__ = ["Path", "Placed", "cut", "to_trace"]


@dataclass(frozen=True, slots=True)
class Placed:
    """A call whose sampled tokens are trained in a path."""

    call: Call
    start: int
    """Where in the path its first sampled token stands."""
    diverges: bool = False
    """Whether the tokens before it differ from the prompt that the engine saw."""


@dataclass(frozen=True, slots=True)
class Path:
    """Tokens in order, with the calls that are trained in them."""

    token_ids: IntArray
    """int32 [seq]"""
    placed: tuple[Placed, ...]
    """In the order of their tokens."""


def cut(path: Path, limit: int | None) -> tuple[Path | None, int]:
    """Keep the exact causal prefix up to the last trained token within `limit` tokens.

    Returns:
        The path, None where no trained token is left, and how many trained tokens were lost.
    """
    if limit is None or len(path.token_ids) <= limit:
        return path, 0
    left = tuple(placed for placed in path.placed if placed.start < limit)
    trained = sum(len(placed.call.sampled_ids) for placed in path.placed)
    if not left:
        return None, trained
    end = min(limit, left[-1].start + len(left[-1].call.sampled_ids))
    kept = sum(min(len(each.call.sampled_ids), end - each.start) for each in left)
    return Path(path.token_ids[:end].copy(), left), trained - kept


def to_trace(path: Path) -> Trace:
    """Lay out mask, logprobs and weight versions; what goes beyond the path's end is left out."""
    size = len(path.token_ids)
    mask = np.zeros(size, np.bool_)
    logprobs = np.zeros(size, np.float32)
    versions = np.full(size, -1, np.int32)
    counts = [min(len(placed.call.sampled_ids), size - placed.start) for placed in path.placed]
    for placed, count in zip(path.placed, counts, strict=True):
        call, start = placed.call, placed.start
        span = slice(start, start + count)
        mask[span] = True
        logprobs[span] = call.logprobs[:count]
        versions[span] = call.weight_versions[:count]
    return Trace(
        token_ids=path.token_ids.astype(np.int32, copy=False),
        loss_mask=mask,
        logprobs=logprobs,
        weight_versions=versions,
        call_ids=tuple(placed.call.id for placed in path.placed),
        divergences=sum(placed.diverges for placed in path.placed),
        call_tokens=tuple(counts),
        call_indices=tuple(placed.call.index for placed in path.placed),
    )
