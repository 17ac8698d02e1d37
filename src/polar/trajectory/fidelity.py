"""An independent check of the law of token fidelity; shares no code with the builders."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polar.errors import FidelityError
from polar.trajectory.builders import Built
from polar.types import Call, CallId, FloatArray, IntArray, MaskArray, Trace

__all__ = ["FidelityReport", "TapeRecord", "check", "check_tape"]


@dataclass(frozen=True, slots=True)
class FidelityReport:
    """What was checked and found true."""

    calls: int
    traces: int
    sampled: int
    """Sampled tokens of all calls."""
    kept: int
    """Sampled tokens found trained, each exactly once and as recorded."""
    context: int
    """Context tokens compared with what the engine saw."""
    divergences: int = 0
    """Calls trained in another context than the engine saw, as their traces say."""


@dataclass(frozen=True, slots=True)
class TapeRecord:
    """What an engine saw and sampled in one request, recorded at the engine."""

    prompt_sha256: bytes
    """SHA-256 of the prompt ids as little-endian int32."""
    prompt_tokens: int
    token_ids: IntArray
    """int32 [sampled]"""
    logprobs: FloatArray
    """float32 [sampled]"""
    may_be_lost: bool = False
    """Whether it may be in no call: its process was killed, and its session broken off with it."""

    @classmethod
    def of(
        cls, prompt_ids: Sequence[int] | IntArray, token_ids: IntArray, logprobs: FloatArray
    ) -> TapeRecord:
        """Make the record of one request."""
        prompt = np.asarray(prompt_ids, dtype="<i4")
        return cls(
            prompt_sha256=hashlib.sha256(prompt.tobytes()).digest(),
            prompt_tokens=len(prompt),
            token_ids=np.asarray(token_ids, dtype=np.int32),
            logprobs=np.asarray(logprobs, dtype=np.float32),
        )


def check(calls: Iterable[Call], built: Built) -> FidelityReport:
    """Compare traces with the calls they were built from, token by token.

    A call's sampled tokens must stand in a trace right after exactly the call's recorded prompt;
    so their place is known from the call alone, whatever the builder did. Only a trace that says
    that it diverges is held to less: its calls follow each other, and as many as it says have
    another context than the engine saw.

    Raises:
        FidelityError: A sampled token is missing without a counted reason, trained twice,
            altered (id, logprob, weight version), or conditioned on something else than its
            call's prompt and the tokens sampled before it. Names session, call and position.
    """
    by_id = {call.id: call for call in calls}
    trained: dict[CallId, int] = {}
    context = 0
    for number, trace in enumerate(built.traces):
        expected = np.zeros(len(trace.token_ids), np.bool_)
        own = _calls_of(trace, by_id, trained)
        if trace.divergences:
            trained |= _check_divergent(own, trace, expected)
        else:
            trained |= {call.id: _check_span(call, trace, expected) for call in own}
        _check_rest(trace, expected, number)
        context += int((~expected).sum())
    _check_account(by_id, trained, built)
    return FidelityReport(
        calls=len(by_id),
        traces=len(built.traces),
        sampled=built.report.sampled,
        kept=built.report.kept,
        context=context,
        divergences=sum(trace.divergences for trace in built.traces),
    )


def check_tape(calls: Iterable[Call], tape: Iterable[TapeRecord]) -> int:
    """Compare the journal's calls with an engine's own recording, abandoned calls included.

    Requests that sampled nothing are left out on both sides.

    Returns:
        How many requests are in no call and may be so.

    Raises:
        FidelityError: A call has no equal on the tape or the tape has more than the calls.
    """
    names: dict[tuple[bytes, bytes, bytes], Call] = {}
    recorded: Counter[tuple[bytes, bytes, bytes]] = Counter()
    for call in calls:
        if len(call.sampled_ids):
            key = _tape_key(TapeRecord.of(call.prompt_ids, call.sampled_ids, call.logprobs))
            recorded[key] += 1
            names[key] = call
    sampled: Counter[tuple[bytes, bytes, bytes]] = Counter()
    excused: Counter[tuple[bytes, bytes, bytes]] = Counter()
    for record in tape:
        if len(record.token_ids):
            key = _tape_key(record)
            sampled[key] += 1
            excused[key] += record.may_be_lost
    invented, lost = recorded - sampled, sampled - recorded
    if invented:
        call = names[next(iter(invented))]
        raise _broken("the engine's tape has no request with this prompt and reply", call, 0)
    if missing := lost - excused:
        prompt = next(iter(missing))[0].hex()[:12]
        raise FidelityError(
            f"{missing.total()} requests on the engine's tape are in no call",
            where=f"prompt {prompt}",
        )
    return lost.total()


def _calls_of(
    trace: Trace, by_id: Mapping[CallId, Call], trained: Mapping[CallId, int]
) -> list[Call]:
    own: list[Call] = []
    for call_id in trace.call_ids:
        call = by_id.get(call_id)
        if call is None:
            raise FidelityError("a trace trains an unknown call", where=f"call {call_id}")
        if call_id in trained or any(call is other for other in own):
            raise _broken("its tokens are trained twice", call, 0)
        own.append(call)
    return own


def _check_span(call: Call, trace: Trace, expected: MaskArray) -> int:
    """Check the tokens of one call in its trace and mark them; return how many are trained."""
    start = len(call.prompt_ids)
    if start >= len(trace.token_ids):
        raise _broken("its tokens are missing from the trace that names it", call, 0)
    differs = _first_difference(trace.token_ids[:start], call.prompt_ids)
    if differs is not None:
        raise _broken("a token it was conditioned on differs from its prompt", call, differs)
    return _check_sampled(call, trace, expected, start)


def _check_divergent(calls: Sequence[Call], trace: Trace, expected: MaskArray) -> dict[CallId, int]:
    """Check a trace whose calls stand one after another, in places that it alone tells."""
    trained: dict[CallId, int] = {}
    end = divergences = 0
    for call in calls:
        start = end + int(trace.loss_mask[end:].argmax()) if end < len(trace.loss_mask) else end
        divergences += _first_difference(trace.token_ids[:start], call.prompt_ids) is not None
        trained[call.id] = _check_sampled(call, trace, expected, start)
        end = start + trained[call.id]
    if divergences != trace.divergences:
        raise FidelityError(
            f"{divergences} calls of a trace have another context than the engine saw,"
            f" it says {trace.divergences}",
            where=f"call {calls[0].id}" if calls else None,
        )
    return trained


def _check_sampled(call: Call, trace: Trace, expected: MaskArray, start: int) -> int:
    """Check what a call sampled at its place and mark it; return how many are trained."""
    end = min(start + len(call.sampled_ids), len(trace.token_ids))
    count = end - start
    if count <= 0:
        raise _broken("its tokens are missing from the trace that names it", call, 0)
    span = slice(start, end)
    for what, found, sampled in (
        ("token", trace.token_ids, call.sampled_ids),
        ("logprob", trace.logprobs, call.logprobs),
        ("weight version", trace.weight_versions, call.weight_versions),
        ("loss mask", trace.loss_mask, np.ones(count, np.bool_)),
    ):
        differs = _first_difference(found[span], sampled[:count])
        if differs is not None:
            raise _broken(f"the {what} of a sampled token was altered", call, start + differs)
    if expected[span].any():
        raise _broken("its tokens overlap another call's", call, start)
    expected[span] = True
    return count


def _check_rest(trace: Trace, expected: MaskArray, number: int) -> None:
    """Check that nothing but the marked tokens trains."""
    clean = ~trace.loss_mask & (trace.logprobs == 0) & (trace.weight_versions == -1)
    wrong = ~expected & ~clean
    if wrong.any():
        raise FidelityError(
            "a token that no call of the trace sampled is marked as sampled",
            where=f"trace {number}, position {int(wrong.argmax())}",
        )


def _check_account(by_id: dict[CallId, Call], trained: dict[CallId, int], built: Built) -> None:
    """Check that what is missing is dropped for a reason that its call bears out."""
    report = built.report
    missing: Counter[str] = Counter()
    for call in by_id.values():
        lost = len(call.sampled_ids) - trained.get(call.id, 0)
        if lost:
            missing[_reason(call, trained, built)] += lost
    if dict(missing) != dict(report.dropped):
        raise FidelityError(
            f"tokens missing from the traces: {dict(missing)}, reported: {dict(report.dropped)}",
            where=_session_of(by_id),
        )
    sampled = sum(len(call.sampled_ids) for call in by_id.values())
    kept = sum(trained.values())
    divergences = sum(trace.divergences for trace in built.traces)
    if report.divergences != divergences:
        raise FidelityError(
            f"{divergences} calls diverge, reported: {report.divergences}",
            where=_session_of(by_id),
        )
    if (report.sampled, report.kept) != (sampled, kept):
        raise FidelityError(
            f"{sampled} tokens were sampled and {kept} are trained,"
            f" reported: {report.sampled} and {report.kept}",
            where=_session_of(by_id),
        )


def _reason(call: Call, trained: dict[CallId, int], built: Built) -> str:
    dropped = built.report.dropped
    if call.id not in trained:
        if f"kind_{call.kind}" in dropped:
            return f"kind_{call.kind}"
        if call.finish_reason in ("abandoned", "error") and call.finish_reason in dropped:
            return call.finish_reason
    if "too_long" in dropped:
        return "too_long"
    raise _broken("a sampled token is missing", call, trained.get(call.id, 0))


def _first_difference(a: np.ndarray, b: np.ndarray) -> int | None:
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    if len(differs):
        return int(differs[0])
    return None if len(a) == len(b) else length


def _broken(what: str, call: Call, position: int) -> FidelityError:
    return FidelityError(
        what, where=f"session {call.session_id}, call {call.id}, position {position}"
    )


def _session_of(by_id: dict[CallId, Call]) -> str | None:
    return next((f"session {call.session_id}" for call in by_id.values()), None)


def _tape_key(record: TapeRecord) -> tuple[bytes, bytes, bytes]:
    return (
        record.prompt_sha256,
        np.asarray(record.token_ids, "<i4").tobytes(),
        np.asarray(record.logprobs, "<f4").tobytes(),
    )
