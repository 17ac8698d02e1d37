"""From calls to traces: what of each sampled token is trained, where, and what is dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, assert_never

import numpy as np

from polar.errors import FidelityError
from polar.trajectory.tree import TokenTree
from polar.types import BuildReport, Call, CallId, CallKind, Trace

__all__ = ["BuildPolicy", "BuilderName", "Built", "build", "drop_reason"]

BuilderName = Literal["prefix_merging", "per_request"]


@dataclass(frozen=True, slots=True)
class BuildPolicy:
    """Which sampled tokens train."""

    kinds: frozenset[CallKind] = frozenset({"main", "subagent"})
    """Kinds of calls that train; others are dropped with the reason `kind_<kind>`."""
    drop_abandoned: bool = True
    """Whether calls whose client left are dropped with the reason `abandoned`."""
    max_trace_tokens: int | None = None
    """Longest trace; what lies beyond is dropped with the reason `too_long`."""


@dataclass(frozen=True, slots=True)
class Built:
    """Traces and the account of every sampled token."""

    traces: tuple[Trace, ...]
    report: BuildReport


def build(
    calls: Iterable[Call],
    *,
    builder: BuilderName = "prefix_merging",
    policy: BuildPolicy | None = None,
) -> Built:
    """Turn the calls of a session into traces.

    Every sampled token is trained in exactly one trace or dropped with a counted reason.

    Args:
        calls: All calls of one session's attempt, in any order.
        builder: `prefix_merging` makes one trace a leaf of the token tree. Where leaves share
            the tokens of a call, the first leaf in call order trains them and the others have
            them as context. `per_request` makes one trace a call.
        policy: What to drop; the default keeps main and sub-agent calls that were not abandoned.

    Raises:
        FidelityError: A call's arrays do not fit each other, a logprob is not finite, or the
            account does not add up.
    """
    policy = policy or BuildPolicy()
    ordered = sorted(calls, key=lambda call: (call.session_id, call.attempt, call.index, call.id))
    for call in ordered:
        _validate(call)
    dropped: Counter[str] = Counter()
    kept: list[Call] = []
    for call in ordered:
        reason = drop_reason(call, policy)
        if reason is not None:
            dropped[reason] += len(call.sampled_ids)
        elif len(call.sampled_ids):
            kept.append(call)
    tree = TokenTree(kept)
    traces = []
    for trace in _traces(kept, tree, builder):
        short, lost = _truncate(trace, kept, policy.max_trace_tokens)
        dropped["too_long"] += lost
        if short is not None:
            traces.append(short)
    report = _report(ordered, kept, traces, dropped=dropped, tree=tree)
    return Built(traces=tuple(traces), report=report)


def drop_reason(call: Call, policy: BuildPolicy) -> str | None:
    """Say why a call as a whole is not trained; None when it is."""
    if call.kind not in policy.kinds:
        return f"kind_{call.kind}"
    if policy.drop_abandoned and call.finish_reason == "abandoned":
        return "abandoned"
    return None


def _validate(call: Call) -> None:
    where = f"session {call.session_id}, call {call.id}"
    sampled = len(call.sampled_ids)
    if len(call.logprobs) != sampled or len(call.weight_versions) != sampled:
        raise FidelityError(
            f"{sampled} sampled tokens have {len(call.logprobs)} logprobs"
            f" and {len(call.weight_versions)} weight versions",
            where=where,
        )
    finite = np.isfinite(call.logprobs)
    if not finite.all():
        position = int(finite.argmin())
        raise FidelityError(
            f"the logprob of sampled token {position} is {call.logprobs[position]}", where=where
        )


def _traces(kept: Sequence[Call], tree: TokenTree, builder: BuilderName) -> list[Trace]:
    match builder:
        case "prefix_merging":
            return _one_a_leaf(kept, tree)
        case "per_request":
            return [_one_a_call(call) for call in kept]
        case _:
            assert_never(builder)


def _one_a_call(call: Call) -> Trace:
    prompt = len(call.prompt_ids)
    return Trace(
        token_ids=np.concatenate([call.prompt_ids, call.sampled_ids]).astype(np.int32),
        loss_mask=np.arange(prompt + len(call.sampled_ids)) >= prompt,
        logprobs=np.concatenate([np.zeros(prompt, np.float32), call.logprobs]).astype(np.float32),
        weight_versions=np.concatenate(
            [np.full(prompt, -1, np.int32), call.weight_versions]
        ).astype(np.int32),
        call_ids=(call.id,),
    )


def _one_a_leaf(kept: Sequence[Call], tree: TokenTree) -> list[Trace]:
    by_id = {call.id: call for call in kept}
    ends = {tree.end(call.id): call.id for call in kept}
    trained: set[CallId] = set()
    traces = []
    for leaf in tree.leaves():
        path = tree.path(leaf)
        own = [by_id[ends[index]] for index in path if index in ends and ends[index] not in trained]
        trained.update(call.id for call in own)
        traces.append(_flatten(tree, path, own))
    return traces


def _flatten(tree: TokenTree, path: Sequence[int], own: Sequence[Call]) -> Trace:
    """Lay out one path; the sampled tokens of the calls in `own` are trained in it."""
    token_ids = np.concatenate([tree.segment(index).token_ids for index in path])
    mask = np.zeros(len(token_ids), np.bool_)
    logprobs = np.zeros(len(token_ids), np.float32)
    versions = np.full(len(token_ids), -1, np.int32)
    for call in own:
        start = len(call.prompt_ids)
        span = slice(start, start + len(call.sampled_ids))
        mask[span] = True
        logprobs[span] = call.logprobs
        versions[span] = call.weight_versions
    return Trace(token_ids, mask, logprobs, versions, tuple(call.id for call in own))


def _truncate(trace: Trace, kept: Sequence[Call], limit: int | None) -> tuple[Trace | None, int]:
    """Keep the exact causal prefix up to the last trained token within `limit` tokens."""
    if limit is None or len(trace.token_ids) <= limit:
        return trace, 0
    lost = int(trace.loss_mask[limit:].sum())
    trained = np.flatnonzero(trace.loss_mask[:limit])
    if not len(trained):
        return None, lost
    end = int(trained[-1]) + 1
    own = set(trace.call_ids)
    starts = {call.id: len(call.prompt_ids) for call in kept if call.id in own}
    return Trace(
        token_ids=trace.token_ids[:end].copy(),
        loss_mask=trace.loss_mask[:end].copy(),
        logprobs=trace.logprobs[:end].copy(),
        weight_versions=trace.weight_versions[:end].copy(),
        call_ids=tuple(call_id for call_id in trace.call_ids if starts[call_id] < end),
    ), lost


def _report(
    calls: Sequence[Call],
    kept: Sequence[Call],
    traces: Sequence[Trace],
    *,
    dropped: Counter[str],
    tree: TokenTree,
) -> BuildReport:
    sampled = sum(len(call.sampled_ids) for call in calls)
    trained = sum(int(trace.loss_mask.sum()) for trace in traces)
    reasons = {reason: count for reason, count in sorted(dropped.items()) if count}
    if trained + sum(reasons.values()) != sampled:
        raise FidelityError(
            f"of {sampled} sampled tokens {trained} are kept and {sum(reasons.values())} dropped",
            where=f"session {calls[0].session_id}" if calls else None,
        )
    forks = Counter(call.fork_reason for call in calls if call.fork_reason is not None)
    return BuildReport(
        sampled=sampled,
        kept=trained,
        dropped=MappingProxyType(reasons),
        forks=MappingProxyType(dict(sorted(forks.items()))),
        per_request_tokens=sum(len(call.prompt_ids) + len(call.sampled_ids) for call in kept),
        trace_tokens=sum(len(trace.token_ids) for trace in traces),
        tree_tokens=tree.size,
    )
