"""Traces merged into prefix trees: every token with the same context is computed once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polar.errors import TrainingError
from polar.train.layout import TreeLayout
from polar.types import FloatArray, IntArray, Trace

__all__ = ["Indices", "TreeBatch", "build_tree", "plan_batches"]

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """Some traces as one packed prefix tree, and where their trained tokens are predicted.

    A *node* is a unique token (same token, same context); a *sample* is one trained token of one
    trace. Several samples may share the node that predicts them, and its logits.
    """

    token_ids: IntArray
    """int32 [nodes]; in depth-first order."""
    position_ids: IntArray
    """int32 [nodes]; depth of the node: its position in every trace that it belongs to."""
    layout: TreeLayout
    logit_nodes: Indices
    """int64 [rows]; the nodes whose logits are needed, ascending."""
    sample_rows: Indices
    """int64 [samples]; index into `logit_nodes` of the node that predicts the sample."""
    sample_tokens: Indices
    """int64 [samples]; the token that was sampled."""
    sample_traces: Indices
    """int64 [samples]; index of the trace among those given to `plan_batches`."""
    sample_positions: Indices
    """int64 [samples]; position of the sampled token within its trace."""
    engine_logprobs: FloatArray
    """float32 [samples]; as recorded."""
    weight_versions: IntArray
    """int32 [samples]; as recorded."""
    sequence_tokens: int
    """Tokens that the traces would cost as separate sequences."""


def plan_batches(
    traces: Sequence[Trace], *, max_tokens: int | None, max_trace_tokens: int, share: bool = True
) -> tuple[list[TreeBatch], tuple[int, ...]]:
    """Divide traces into trees of at most `max_tokens` nodes, recomputing as few as possible.

    A tree that is too large is cut between two traces; the prefix that they share is then
    computed in both parts. A trace with more than `max_tokens` is a batch of its own, and so is
    every trace if nothing is to be shared. Without the limit all traces are one batch.

    Returns:
        The batches, and the indices of the traces longer than `max_trace_tokens` (dropped).
    """
    dropped = tuple(i for i, t in enumerate(traces) if t.token_ids.size > max_trace_tokens)
    order = _lexicographic(
        traces, [i for i, t in enumerate(traces) if 0 < t.token_ids.size <= max_trace_tokens]
    )
    shared = _shared_prefixes(traces, order)
    lengths = [traces[i].token_ids.size for i in order]
    if not share:
        cuts = list(range(len(order) + 1))
    elif max_tokens is None:
        cuts = [0, len(order)] if order else [0]
    else:
        cuts = _best_cuts(lengths, shared, max_tokens)
    return [
        _build(traces, order[a:b], [0, *shared[a + 1 : b]]) for a, b in itertools.pairwise(cuts)
    ], dropped


def build_tree(traces: Sequence[Trace]) -> TreeBatch:
    """Merge traces into one tree.

    Raises:
        TrainingError: A trace trains its first token, which nothing predicts, or a trained token
            has no finite logprob.
    """
    order = _lexicographic(traces, list(range(len(traces))))
    return _build(traces, order, _shared_prefixes(traces, order))


def _lexicographic(traces: Sequence[Trace], indices: list[int]) -> list[int]:
    """Sort so that traces with a common prefix are neighbours: the order of a depth-first walk."""
    return sorted(indices, key=lambda i: traces[i].token_ids.astype(">u4").tobytes())


def _shared_prefixes(traces: Sequence[Trace], order: Sequence[int]) -> list[int]:
    """Length of the prefix that each trace shares with the one before it; 0 for the first."""
    if not order:
        return []
    pairs = itertools.pairwise(order)
    return [0, *(_common(traces[a].token_ids, traces[b].token_ids) for a, b in pairs)]


def _common(first: IntArray, second: IntArray) -> int:
    size = min(first.size, second.size)
    differs = first[:size] != second[:size]
    return int(differs.argmax()) if differs.any() else size


def _best_cuts(lengths: Sequence[int], shared: Sequence[int], max_tokens: int) -> list[int]:
    """Boundaries of consecutive parts of at most `max_tokens` nodes, with the fewest in all."""
    best = [0] + [2**62] * len(lengths)
    start_of = [0] * (len(lengths) + 1)
    for end in range(1, len(lengths) + 1):
        tail = 0  # nodes that the traces after `start` add to a part that ends before `end`
        for start in range(end - 1, -1, -1):
            nodes = lengths[start] + tail
            alone = start == end - 1
            if (alone or nodes <= max_tokens) and best[start] + nodes < best[end]:
                best[end], start_of[end] = best[start] + nodes, start
            tail += lengths[start] - shared[start]
            if tail >= max_tokens:
                break
    cuts = [len(lengths)]
    while cuts[-1] > 0:
        cuts.append(start_of[cuts[-1]])
    return cuts[::-1]


def _build(traces: Sequence[Trace], order: Sequence[int], shared: Sequence[int]) -> TreeBatch:
    paths: list[Indices] = []  # nodes of each trace, in order
    size = 0
    for index, prefix in zip(order, shared, strict=True):
        fresh = traces[index].token_ids.size - prefix
        trunk = paths[-1][:prefix] if paths else np.empty(0, np.int64)
        paths.append(np.concatenate([trunk, np.arange(size, size + fresh)]))
        size += fresh

    token_ids = np.empty(size, np.int32)
    position_ids = np.empty(size, np.int32)
    for index, path in zip(order, paths, strict=True):
        token_ids[path] = traces[index].token_ids
        position_ids[path] = np.arange(path.size)

    samples = [_samples(traces[i], i, path) for i, path in zip(order, paths, strict=True)]
    predicting = np.concatenate([s[0] for s in samples])
    logit_nodes, rows = np.unique(predicting, return_inverse=True)
    by_row = np.argsort(rows, kind="stable")
    tokens, trace_of, position, logprobs, versions = (
        np.concatenate([s[k] for s in samples])[by_row] for k in range(1, 6)
    )
    return TreeBatch(
        token_ids=token_ids,
        position_ids=position_ids,
        layout=TreeLayout.from_depths(position_ids),
        logit_nodes=logit_nodes,
        sample_rows=rows[by_row],
        sample_tokens=tokens,
        sample_traces=trace_of,
        sample_positions=position,
        engine_logprobs=logprobs,
        weight_versions=versions,
        sequence_tokens=sum(path.size for path in paths),
    )


def _samples(trace: Trace, index: int, path: Indices) -> tuple[NDArray[np.generic], ...]:
    """Predicting node, token, trace, position, engine logprob and version of trained tokens."""
    positions = np.flatnonzero(trace.loss_mask)
    sizes = {trace.loss_mask.size, trace.logprobs.size, trace.weight_versions.size}
    if sizes != {trace.token_ids.size}:
        raise TrainingError(
            f"a trace of {trace.token_ids.size} tokens has arrays of {sorted(sizes)} entries",
            fix="Give every token its mask, logprob and weight version.",
        )
    if positions.size and positions[0] == 0:
        raise TrainingError(
            "a trace trains its first token, which has no context", fix="Check the trace builder."
        )
    if not np.isfinite(trace.logprobs[positions]).all():
        raise TrainingError(
            "a sampled token was recorded without a finite logprob",
            fix="Check the engine: `polar doctor` probes it.",
        )
    return (
        path[positions - 1],
        trace.token_ids[positions].astype(np.int64),
        np.full(positions.size, index, np.int64),
        positions.astype(np.int64),
        trace.logprobs[positions],
        trace.weight_versions[positions],
    )
