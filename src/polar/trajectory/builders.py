"""From calls to traces: what of each sampled token is trained, where, and what is dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, assert_never

import numpy as np

from polar.errors import FidelityError
from polar.trajectory.canonical import canonical_paths
from polar.trajectory.paths import Path, Placed, cut, to_trace
from polar.trajectory.tree import TokenTree
from polar.types import BuildReport, Call, CallId, CallKind, Capture, Trace

__all__ = ["BuildPolicy", "BuilderName", "Built", "build", "drop_reason"]

BuilderName = Literal["prefix_merging", "per_request", "canonical"]


@dataclass(frozen=True, slots=True)
class BuildPolicy:
    """Which sampled tokens train."""

    kinds: frozenset[CallKind] = frozenset({"main", "subagent"})
    """Kinds of calls that train; others are dropped with the reason `kind_<kind>`."""
    drop_abandoned: bool = True
    """Whether calls whose client left are dropped with the reason `abandoned`."""
    drop_broken: bool = True
    """Whether calls that the engine broke off are dropped with the reason `error`: it may have
    lost its weights, and then what it had sampled is on record under a version that it is not of.
    """
    max_trace_tokens: int | None = None
    """Longest trace; what lies beyond is dropped with the reason `too_long`."""
    end_of_turn_id: int | None = None
    """For `canonical`: the token that ends a turn. Absent: the one most replies ended with."""


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
            them as context. `per_request` makes one trace a call. `canonical` joins calls of
            engines that render every history anew, and counts where the context of a call is
            then not the prompt that the engine saw.
        policy: What to drop; the default keeps main and sub-agent calls that came to
            their end.

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
    for path in _paths(kept, tree, builder, policy):
        short, lost = cut(path, policy.max_trace_tokens)
        dropped["too_long"] += lost
        if short is not None:
            traces.append(to_trace(short))
    report = _report(ordered, kept, traces, dropped=dropped, tree=tree)
    return Built(traces=tuple(traces), report=report)


def drop_reason(call: Call, policy: BuildPolicy) -> str | None:
    """Say why a call as a whole is not trained; None when it is."""
    if call.capture == "text":
        return "text_only"
    if call.kind not in policy.kinds:
        return f"kind_{call.kind}"
    if policy.drop_abandoned and call.finish_reason == "abandoned":
        return "abandoned"
    if policy.drop_broken and call.finish_reason == "error":
        return "error"
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
    if call.capture == "text" and (sampled or len(call.prompt_ids)):
        raise FidelityError("a call of which only the text is known has tokens", where=where)
    finite = np.isfinite(call.logprobs)
    if not finite.all():
        position = int(finite.argmin())
        raise FidelityError(
            f"the logprob of sampled token {position} is {call.logprobs[position]}", where=where
        )


def _paths(
    kept: Sequence[Call], tree: TokenTree, builder: BuilderName, policy: BuildPolicy
) -> list[Path]:
    match builder:
        case "prefix_merging":
            return _one_a_leaf(kept, tree)
        case "per_request":
            return [_one_a_call(call) for call in kept]
        case "canonical":
            return canonical_paths(kept, policy.end_of_turn_id)
        case _:
            assert_never(builder)


def _one_a_call(call: Call) -> Path:
    token_ids = np.concatenate([call.prompt_ids, call.sampled_ids])
    return Path(token_ids, (Placed(call, len(call.prompt_ids)),))


def _one_a_leaf(kept: Sequence[Call], tree: TokenTree) -> list[Path]:
    by_id = {call.id: call for call in kept}
    ends = {tree.end(call.id): call.id for call in kept}
    trained: set[CallId] = set()
    paths = []
    for leaf in tree.leaves():
        path = tree.path(leaf)
        own = [by_id[ends[index]] for index in path if index in ends and ends[index] not in trained]
        trained.update(call.id for call in own)
        token_ids = np.concatenate([tree.segment(index).token_ids for index in path])
        paths.append(Path(token_ids, tuple(Placed(call, len(call.prompt_ids)) for call in own)))
    return paths


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
        divergences=sum(trace.divergences for trace in traces),
        cut_replies=sum(call.finish_reason == "length" for call in kept),
        capture=_capture(calls),
        text_calls=sum(call.capture == "text" for call in calls),
        measured_tokens=sum(call.measured_tokens for call in calls),
        discarded_tokens=sum(call.discarded_tokens for call in calls),
    )


def _capture(calls: Sequence[Call]) -> Capture:
    """Say how the tokens of some calls are known: as those of which least is."""
    ways: set[Capture] = {call.capture for call in calls}
    if "text" in ways:
        return "text"
    return "recorded" if "recorded" in ways else "tokens"
