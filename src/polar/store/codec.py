"""Calls as rows: each one a delta on an earlier call of the same attempt, without loss."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from polar.store.growing import GrowingIds
from polar.types import (
    Call,
    CallId,
    FloatArray,
    IntArray,
    Message,
    Sampling,
    Sent,
    SessionId,
    ToolCall,
    ToolSpec,
)

__all__ = ["CALL_COLUMNS", "CallRow", "Context", "decode_calls", "encode_call"]


@dataclass(frozen=True, slots=True)
class Context:
    """What a stored call leaves for a later one to be a delta on."""

    call_id: CallId
    token_ids: IntArray
    """int32 [prompt + sampled]"""
    messages: tuple[Message, ...]
    """The call's messages and its reply."""
    tools: tuple[ToolSpec, ...]
    sent: tuple[Message, ...] | None = None
    """The messages that the harness sent and the reply; absent where they are `messages`."""

    @classmethod
    def after(cls, call: Call) -> Context:
        """Take the context that a call ends with."""
        token_ids = np.concatenate([call.prompt_ids, call.sampled_ids]).astype(np.int32)
        sent = None if call.sent is None else (*call.sent.messages, call.reply)
        return cls(call.id, token_ids, (*call.messages, call.reply), call.tools, sent)

    @property
    def size_bytes(self) -> int:
        """Roughly the memory it takes: the text of a token is about as long as its id."""
        return 2 * self.token_ids.nbytes + 200 * (len(self.messages) + len(self.sent or ()))


class CallRow(NamedTuple):
    """One row of the table `calls`, without its ordinal."""

    session_id: str
    attempt: int
    id: str
    call_index: int
    parent_id: str | None
    base_id: str | None
    shared_tokens: int
    prompt_tail: bytes
    sampled: bytes
    logprobs: bytes
    versions: bytes
    shared_messages: int
    messages_tail: str
    tools: str | None
    sampling: str
    reply: str
    finish_reason: str
    kind: str
    fork_reason: str | None
    started_at: float
    ended_at: float
    sent: str | None = None
    capture: str = "tokens"


CALL_COLUMNS = ", ".join(CallRow._fields)

_COUNTS = ("measured_tokens", "discarded_tokens", "opening_tokens")
"""Counts of a call's tokens that stand beside its sampling parameters."""


def encode_call(call: Call, base: Context | None) -> CallRow:
    """Write a call as a row, leaving out what it shares with the base.

    Args:
        call: The call to store.
        base: An earlier call of the same attempt; any will do, the closer the smaller the row.
    """
    shared_tokens = _common_tokens(base.token_ids, call.prompt_ids) if base else 0
    shared_messages = _common_messages(base.messages, call.messages) if base else 0
    same_tools = base is not None and base.tools == call.tools
    return CallRow(
        session_id=call.session_id,
        attempt=call.attempt,
        id=call.id,
        call_index=call.index,
        parent_id=call.parent_id,
        base_id=base.call_id if base else None,
        shared_tokens=shared_tokens,
        prompt_tail=_int_bytes(call.prompt_ids[shared_tokens:]),
        sampled=_int_bytes(call.sampled_ids),
        logprobs=np.asarray(call.logprobs, dtype="<f4").tobytes(),
        versions=_int_bytes(call.weight_versions),
        shared_messages=shared_messages,
        messages_tail=_json(call.messages[shared_messages:]),
        tools=None if same_tools else _json(call.tools),
        sampling=_encode_sampling(call),
        reply=_json(call.reply),
        finish_reason=call.finish_reason,
        kind=call.kind,
        fork_reason=call.fork_reason,
        started_at=call.started_at,
        ended_at=call.ended_at,
        sent=None if call.sent is None else _encode_sent(call.sent, call.tools, base),
        capture=call.capture,
    )


def decode_calls(rows: Iterable[CallRow]) -> list[Call]:
    """Read the rows of one attempt, in the order they were stored: a base before its deltas."""
    read: dict[str, _Read] = {}
    for row in rows:
        read[row.id] = _decode_call(row, None if row.base_id is None else read[row.base_id])
    return [each.call for each in read.values()]


@dataclass(frozen=True, slots=True)
class _Read:
    """A call that was read, and where its prompt and sampled ids stand."""

    call: Call
    ids: GrowingIds
    """Begins with the call's prompt and sampled ids; a later call may have gone on from there."""

    @property
    def end(self) -> int:
        return len(self.call.prompt_ids) + len(self.call.sampled_ids)

    def grown_by(self, shared_tokens: int, tail: IntArray) -> GrowingIds:
        """Take the first ids and append some: in place where nobody else has gone on."""
        if shared_tokens == self.end == len(self.ids):
            self.ids.append(tail)
            return self.ids
        ids = GrowingIds(self.ids.view(0, shared_tokens))
        ids.append(tail)
        return ids


def _decode_call(row: CallRow, read: _Read | None) -> _Read:
    tail = _int_array(row.prompt_tail)
    ids = GrowingIds(tail) if read is None else read.grown_by(row.shared_tokens, tail)
    prompt = len(ids)
    ids.append(_int_array(row.sampled))
    base = None if read is None else read.call
    inherited = base.tools if base else ()
    tools = inherited if row.tools is None else tuple(map(_tool, orjson.loads(row.tools)))
    sampling, counts = _decode_sampling(orjson.loads(row.sampling))
    call = Call(
        id=CallId(row.id),
        session_id=SessionId(row.session_id),
        attempt=row.attempt,
        index=row.call_index,
        parent_id=None if row.parent_id is None else CallId(row.parent_id),
        prompt_ids=ids.view(0, prompt),
        sampled_ids=ids.view(prompt, len(ids)),
        logprobs=_float_array(row.logprobs),
        weight_versions=_int_array(row.versions),
        messages=(
            *(_leading(base.messages, base.reply, row.shared_messages) if base else ()),
            *map(_message, orjson.loads(row.messages_tail)),
        ),
        tools=tools,
        sampling=sampling,
        reply=_message(orjson.loads(row.reply)),
        finish_reason=row.finish_reason,  # type: ignore[arg-type]
        kind=row.kind,  # type: ignore[arg-type]
        fork_reason=row.fork_reason,
        started_at=row.started_at,
        ended_at=row.ended_at,
        sent=None if row.sent is None else _decode_sent(orjson.loads(row.sent), tools, base),
        capture=row.capture,  # type: ignore[arg-type]
        **counts,
    )
    return _Read(call, ids)


def _encode_sent(sent: Sent, seen_tools: tuple[ToolSpec, ...], base: Context | None) -> str:
    """Write what was sent as a delta on what was sent for the base."""
    shared = _common_messages(_sent_before(base), sent.messages)
    fields = {
        "model": sent.model,
        "shared_messages": shared,
        "messages_tail": sent.messages[shared:],
        "tools": None if sent.tools == seen_tools else sent.tools,
        "interceptors": sent.interceptors,
        "chosen_model": sent.chosen_model,
    }
    return _json(fields)


def _decode_sent(
    fields: dict[str, Any], seen_tools: tuple[ToolSpec, ...], base: Call | None
) -> Sent:
    shared: tuple[Message, ...] = ()
    if base is not None:
        before = base.messages if base.sent is None else base.sent.messages
        shared = _leading(before, base.reply, fields["shared_messages"])
    tools = fields["tools"]
    return Sent(
        model=fields["model"],
        messages=(*shared, *map(_message, fields["messages_tail"])),
        tools=seen_tools if tools is None else tuple(map(_tool, tools)),
        interceptors=tuple(fields["interceptors"]),
        chosen_model=fields["chosen_model"],
    )


def _sent_before(base: Context | None) -> tuple[Message, ...]:
    if base is None:
        return ()
    return base.messages if base.sent is None else base.sent


def _leading(messages: tuple[Message, ...], reply: Message, count: int) -> tuple[Message, ...]:
    """Take the first of some messages and the reply to them."""
    return messages[:count] if count <= len(messages) else (*messages, reply)


def _common_tokens(base: IntArray, prompt: IntArray) -> int:
    length = min(len(base), len(prompt))
    differing: NDArray[np.intp] = np.flatnonzero(base[:length] != prompt[:length])
    return int(differing[0]) if differing.size else length


def _common_messages(base: tuple[Message, ...], messages: tuple[Message, ...]) -> int:
    if messages[: len(base)] == base:
        return len(base)
    count = 0
    for ours, theirs in zip(base, messages, strict=False):
        if ours != theirs:
            break
        count += 1
    return count


def _int_bytes(values: IntArray) -> bytes:
    return np.asarray(values, dtype="<i4").tobytes()


def _int_array(blob: bytes) -> IntArray:
    return np.frombuffer(blob, dtype="<i4").astype(np.int32)


def _float_array(blob: bytes) -> FloatArray:
    return np.frombuffer(blob, dtype="<f4").astype(np.float32)


def _json(value: object) -> str:
    return orjson.dumps(value, default=dict).decode()


def _message(fields: dict[str, Any]) -> Message:
    tool_calls = tuple(ToolCall(**call) for call in fields.pop("tool_calls"))
    return Message(**fields, tool_calls=tool_calls)


def _tool(fields: dict[str, Any]) -> ToolSpec:
    return ToolSpec(**fields)


def _encode_sampling(call: Call) -> str:
    """Write how a call was sampled, with the counts that are not 0."""
    counts = {name: count for name in _COUNTS if (count := getattr(call, name))}
    return _json(asdict(call.sampling) | counts if counts else call.sampling)


def _decode_sampling(fields: dict[str, Any]) -> tuple[Sampling, dict[str, int]]:
    counts = {name: fields.pop(name) for name in _COUNTS if name in fields}
    stop, stop_token_ids = tuple(fields.pop("stop")), tuple(fields.pop("stop_token_ids"))
    return Sampling(**fields, stop=stop, stop_token_ids=stop_token_ids), counts
