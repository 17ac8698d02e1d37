"""The published join of calls: raw replies with the server's own tokens between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from polar.trajectory.paths import Path, Placed
from polar.types import Call, IntArray

__all__ = ["canonical_paths", "end_of_turn"]


def canonical_paths(calls: Sequence[Call], end_of_turn_id: int | None) -> list[Path]:
    """Join calls into chains, for engines that render the history of every call anew.

    A call joins the chain with the longest last prompt that begins its own prompt; of equally
    long ones, the chain that it extends exactly. What is put between two replies is what the new
    prompt has beyond the last one, from its first end of turn on. An equal prompt is a retry and
    no continuation, so it begins a chain, and so does a call whose prompt cannot be split:
    nothing is dropped.

    Source: the `prefix_merging` builder of arXiv 2605.24220, without its equality match and
    without its dropping of what follows a failed split.

    Args:
        calls: Calls to train, in canonical order.
        end_of_turn_id: The token that ends a turn of the assistant; None: see `end_of_turn`.
    """
    if end_of_turn_id is None:
        end_of_turn_id = end_of_turn(calls)
    chains: list[_Chain] = []
    for call in calls:
        chain, between = _best(chains, call, end_of_turn_id)
        if chain is None or between is None:
            chains.append(_Chain.of(call))
        else:
            chain.join(call, between)
    return [Path(np.concatenate(chain.pieces), tuple(chain.placed)) for chain in chains]


def end_of_turn(calls: Sequence[Call]) -> int | None:
    """Find the token that most replies ended with by themselves; None where none did."""
    last = Counter(
        int(call.sampled_ids[-1])
        for call in calls
        if len(call.sampled_ids) and call.finish_reason in ("stop", "tool_calls")
    )
    return min(last, key=lambda token: (-last[token], token), default=None)


@dataclass(slots=True)
class _Chain:
    tip: Call
    pieces: list[IntArray]
    placed: list[Placed]
    size: int
    exact: bool = field(default=True)
    """Whether the chain is what the engine's context held after the last call."""

    @classmethod
    def of(cls, call: Call) -> _Chain:
        size = len(call.prompt_ids) + len(call.sampled_ids)
        placed = [Placed(call, len(call.prompt_ids))]
        return cls(call, [call.prompt_ids, call.sampled_ids], placed, size)

    def join(self, call: Call, between: IntArray) -> None:
        self.exact = (self.exact and _extends(self.tip, call)) or self._is(call, between)
        start = self.size + len(between)
        self.placed.append(Placed(call, start, diverges=not self.exact))
        self.pieces += [between, call.sampled_ids]
        self.size = start + len(call.sampled_ids)
        self.tip = call

    def _is(self, call: Call, between: IntArray) -> bool:
        if self.size + len(between) != len(call.prompt_ids):
            return False
        return np.array_equal(np.concatenate([*self.pieces, between]), call.prompt_ids)


def _best(
    chains: Sequence[_Chain], call: Call, end_of_turn_id: int | None
) -> tuple[_Chain | None, IntArray | None]:
    """Choose the chain that a call continues and what goes between."""
    found = [chain for chain in chains if _begins(chain.tip.prompt_ids, call.prompt_ids)]
    if not found:
        return None, None
    best = max(found, key=lambda chain: (len(chain.tip.prompt_ids), _extends(chain.tip, call)))
    return best, _between(best.tip, call, end_of_turn_id)


def _begins(start: IntArray, ids: IntArray) -> bool:
    """Say whether `ids` is `start` and more."""
    return len(start) < len(ids) and np.array_equal(start, ids[: len(start)])


def _extends(tip: Call, call: Call) -> bool:
    end = len(tip.prompt_ids) + len(tip.sampled_ids)
    return np.array_equal(tip.sampled_ids, call.prompt_ids[len(tip.prompt_ids) : end])


def _between(tip: Call, call: Call, end_of_turn_id: int | None) -> IntArray | None:
    """Cut out what the server put after the reply; None where no end of turn is found."""
    rest = call.prompt_ids[len(tip.prompt_ids) :]
    if _extends(tip, call):
        return rest[len(tip.sampled_ids) :]
    if end_of_turn_id is None:
        return None
    ends = np.flatnonzero(rest == end_of_turn_id)
    if not len(ends):
        return None
    ended = len(tip.sampled_ids) > 0 and int(tip.sampled_ids[-1]) == end_of_turn_id
    return rest[int(ends[0]) + ended :]
