"""The splice: a session's next prompt extends the tokens of the call that it goes on from."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson

from polar.errors import FidelityError
from polar.rendering.base import Prepared, Renderer
from polar.rendering.function_form import plain_json
from polar.types import Call, CallId, Chat, IntArray, Message, ToolSpec

__all__ = ["SessionSplicer"]

_Key = tuple[str, str | None, str] | tuple[str, str, tuple[tuple[str, str], ...]]

_Opening = tuple[bytes, _Key | None]

_CONTEXTS_KEPT = 4
"""Whole contexts of a session's late calls: its main conversation's and some sub-agents'."""
_TRAILS_KEPT = 4


@dataclass(frozen=True, slots=True)
class _Record:
    """A recorded call; its prompt is kept as a delta on the call it extends."""

    id: CallId
    index: int
    parent: _Record | None
    delta_ids: IntArray
    """Prompt tokens after the parent's prompt and sampled tokens."""
    sampled_ids: IntArray
    reasoning: str
    tool_call_ids: tuple[str, ...]
    tokens: int
    """Length of prompt and sampled tokens."""
    opening: int
    """How many of the prompt's last tokens begin the reply, and not its place in a conversation."""

    def context_ids(self) -> IntArray:
        """Put prompt and sampled tokens together from the chain of calls."""
        parts: list[IntArray] = []
        record: _Record | None = self
        while record is not None:
            parts += [record.sampled_ids, record.delta_ids]
            record = record.parent
        return np.concatenate(parts[::-1])

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self.tokens - len(self.sampled_ids)


@dataclass(slots=True, eq=False)
class _Node:
    """A message after the messages above it."""

    reasoning: str = ""
    reply_of: _Record | None = None
    """The call that sampled this message; absent for messages that came from the harness."""
    requests: list[_Record] = field(default_factory=list)
    """Calls whose request ended in this message."""
    children: dict[_Key, list[_Node]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Match:
    """A place that a conversation may have reached in the session's history."""

    node: _Node
    known_ids: int
    """Tool-call ids on the way here that are the gateway's own."""
    extends: _Record | None
    """The deepest call on the way here that can be extended."""
    depth: int
    """Messages up to and including that call's reply."""

    @property
    def rank(self) -> tuple[int, int, int]:
        """Deeper first, then by tool-call ids, then the latest."""
        index = self.extends.index if self.extends is not None else -1
        return (self.depth, self.known_ids, index)


@dataclass(frozen=True, slots=True)
class _Walk:
    """How far a conversation is known."""

    reached: list[_Match]
    """Where its last known message is."""
    messages: int
    """How many of its messages are known."""
    best: _Match
    """The best place to go on from, which may be on a branch that ended earlier."""


@dataclass(slots=True)
class _Trail:
    """The walk of a request, kept for the next one that begins like it."""

    messages: tuple[Message, ...]
    walks: list[_Walk]
    """How far the first n messages lead, for n from 0 on, as long as all n are known."""


class SessionSplicer:
    """Keeps the calls of one session as a tree of messages and finds where a request goes on.

    Turns are compared after normalisation, never by bytes: white space at the ends of an
    assistant turn, the formatting of JSON arguments and dropped reasoning make no difference.
    Of several equal candidates the one with the gateway's tool-call ids is taken, then the
    latest. Nothing is sampled, stored or sent here.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._roots: dict[bytes, _Node] = {}
        self._records: dict[CallId, _Record] = {}
        self._issued: set[str] = set()
        self._ends: dict[CallId, _Node] = {}
        self._depths: dict[CallId, int] = {}
        self._contexts: OrderedDict[CallId, IntArray] = OrderedDict()
        self._trails: OrderedDict[_Opening, _Trail] = OrderedDict()

    def prepare(self, chat: Chat) -> Prepared:
        """Make the prompt of a request.

        Raises:
            BadRequest: The model's template cannot express the conversation.
        """
        walk = self._walk(_tools_key(chat.tools), chat.messages)
        if walk.messages == len(chat.messages):
            repeated = _repeated(walk.reached)
            if repeated is not None:
                return _again(repeated)
        if walk.best.extends is not None:
            return self._extended(chat, walk.best.extends, walk.best.depth)
        return self._afresh(chat, self._reason(chat, walk.messages))

    def place(self, chat: Chat, prompt_ids: IntArray) -> Prepared:
        """Say where a prompt hangs that the engine made itself.

        It extends the latest call on the conversation's way whose whole prompt and reply it begins
        with, token for token. Where that is not the last one, what the engine's server made of the
        history differs from what was sampled: a fork, whose reason is `server_rendering`.

        Args:
            chat: What was asked.
            prompt_ids: int32 [prompt], what the engine says that it made of it.
        """
        walk = self._walk(_tools_key(chat.tools), chat.messages)
        if walk.messages == len(chat.messages):
            repeated = _repeated(walk.reached)
            if repeated is not None and np.array_equal(_prompt_of(repeated), prompt_ids):
                return _again(repeated)
        latest = parent = walk.best.extends
        while parent is not None and not self._begins(prompt_ids, parent):
            parent = parent.parent
        if latest is None:
            return Prepared(prompt_ids, None, self._reason(chat, walk.messages))
        if parent is not latest:
            return Prepared(prompt_ids, None if parent is None else parent.id, "server_rendering")
        forked = self._is_forked(latest, chat.messages[walk.best.depth :])
        return Prepared(prompt_ids, latest.id, "edited_message" if forked else None)

    def record(self, call: Call) -> None:
        """Take note of a call that was sampled, so that later requests can extend it.

        Raises:
            FidelityError: The call names a parent that its prompt does not extend.
        """
        parent = self._parent(call)
        known = parent.tokens if parent is not None else 0
        record = _Record(
            id=call.id,
            index=call.index,
            parent=parent,
            delta_ids=call.prompt_ids[known:].copy(),
            sampled_ids=call.sampled_ids.copy(),
            reasoning=_text(call.reply.reasoning),
            tool_call_ids=tuple(tool_call.id for tool_call in call.reply.tool_calls),
            tokens=len(call.prompt_ids) + len(call.sampled_ids),
            opening=call.opening_tokens,
        )
        self._records[call.id] = record
        self._issued.update(record.tool_call_ids)
        self._keep_context(call)
        tools = _tools_key(call.tools)
        node, depth = self._start(call, parent, tools)
        self._cut_trail(tools, call.messages, depth)
        for message in call.messages[depth:]:
            node = _plain_child(node, message)
        node.requests.append(record)
        if call.finish_reason not in ("abandoned", "error"):
            reply = _Node(reasoning=record.reasoning, reply_of=record)
            node.children.setdefault(_key(call.reply), []).append(reply)
            self._ends[call.id] = reply
            self._depths[call.id] = len(call.messages) + 1

    def _parent(self, call: Call) -> _Record | None:
        parent = self._records.get(call.parent_id) if call.parent_id is not None else None
        if parent is None:
            return None
        if not np.array_equal(call.prompt_ids[: parent.tokens], self._context_of(parent)):
            raise FidelityError(
                f"the prompt does not extend the call {parent.id} that it names as its parent",
                where=f"session {call.session_id}, call {call.id}",
            )
        return parent

    def _keep_context(self, call: Call) -> None:
        """Keep the whole context of a few late calls: that is where requests go on from."""
        self._contexts[call.id] = np.concatenate([call.prompt_ids, call.sampled_ids])
        if len(self._contexts) > _CONTEXTS_KEPT:
            self._contexts.popitem(last=False)

    def _context_of(self, record: _Record) -> IntArray:
        kept = self._contexts.get(record.id)
        return record.context_ids() if kept is None else kept

    def _cut_trail(self, tools: bytes, messages: tuple[Message, ...], depth: int) -> None:
        """Forget where a conversation led beyond a depth at which the tree is to grow."""
        opening = _opening(tools, messages)
        if depth == 0:
            self._trails.pop(opening, None)  # the root itself may be new
        elif opening in self._trails:
            del self._trails[opening].walks[depth + 1 :]

    def _start(self, call: Call, parent: _Record | None, tools: bytes) -> tuple[_Node, int]:
        """Node and depth to enter a call's messages at: its parent's reply, or the root."""
        if parent is not None and parent.id in self._ends:
            return self._ends[parent.id], self._depths[parent.id]
        return self._roots.setdefault(tools, _Node()), 0

    def _walk(self, tools: bytes, messages: tuple[Message, ...]) -> _Walk:
        """Follow a conversation, under the tools it has, as far as it is known.

        What an earlier request had as well is not followed again.
        """
        trail = self._trail(tools, messages)
        for number in range(len(trail.walks) - 1, len(messages)):
            before, message = trail.walks[number], messages[number]
            key = _key(message)
            reached = [
                match
                for known in before.reached
                for match in _step(known, message, key, depth=number + 1)
            ]
            if not reached:
                return before
            best = max(before.best, *reached, key=lambda match: match.rank)
            trail.walks.append(_Walk(reached, number + 1, best))
        return trail.walks[len(messages)]

    def _trail(self, tools: bytes, messages: tuple[Message, ...]) -> _Trail:
        """Take up the trail of the latest request that began alike, as far as it is common."""
        opening = _opening(tools, messages)
        trail = self._trails.pop(opening, None)
        if trail is None:
            start = _Match(self._roots.get(tools, _Node()), known_ids=0, extends=None, depth=0)
            trail = _Trail((), [_Walk([start], 0, start)])
        common = min(len(trail.walks) - 1, _common(trail.messages, messages))
        del trail.walks[common + 1 :]
        trail.messages = messages
        self._trails[opening] = trail
        if len(self._trails) > _TRAILS_KEPT:
            self._trails.popitem(last=False)
        return trail

    def _reason(self, chat: Chat, matched: int) -> str | None:
        """Why a request extends no call."""
        if not self._records:
            return None
        own = _tools_key(chat.tools)
        others = (self._walk(key, chat.messages) for key in self._roots if key != own)
        if any(walk.best.extends is not None for walk in others):
            return "changed_tools"
        opening = next(
            (number for number, message in enumerate(chat.messages) if message.role != "system"),
            len(chat.messages),
        )
        known = matched >= opening and own in self._roots and self._has_our_calls(chat.messages)
        return "edited_message" if known or matched > opening else "new_conversation"

    def _has_our_calls(self, messages: Sequence[Message]) -> bool:
        """Say whether turns have tool-call ids that were made here, in whatever they follow."""
        calls = (call for message in messages for call in message.tool_calls)
        return any(call.id in self._issued for call in calls)

    def _extended(self, chat: Chat, parent: _Record, depth: int) -> Prepared:
        new = chat.messages[depth:]
        forked = self._is_forked(parent, new)
        previous_ids = self._context_of(parent)
        delta = self._renderer.bridge(
            previous_ids, new, chat.tools, prompt_tokens=parent.prompt_tokens
        )
        if delta is None:
            if forked:
                return self._afresh(chat, "edited_message")
            closed = previous_ids[-1] in self._renderer.stop_token_ids
            return self._afresh(chat, "no_bridge" if closed else "unclosed_turn")
        return Prepared(
            prompt_ids=np.concatenate([previous_ids, _array(delta)]),
            parent_id=parent.id,
            fork_reason="edited_message" if forked else None,
        )

    def _is_forked(self, parent: _Record, new: Sequence[Message]) -> bool:
        """Say whether messages after a call's reply are not the first that follow it."""
        said = any(message.role == "assistant" for message in new)
        return said or bool(self._ends[parent.id].children)

    def _begins(self, prompt_ids: IntArray, record: _Record) -> bool:
        """Say whether a prompt begins with a call's whole prompt and reply."""
        return np.array_equal(prompt_ids[: record.tokens], self._context_of(record))

    def _afresh(self, chat: Chat, reason: str | None) -> Prepared:
        return Prepared(
            prompt_ids=_array(self._renderer.render(chat.messages, chat.tools)),
            parent_id=None,
            fork_reason=reason,
        )


def _array(token_ids: Sequence[int]) -> IntArray:
    """Take ids out of a list; for a long one numpy's own way takes twice as long."""
    return np.fromiter(token_ids, dtype=np.int32, count=len(token_ids))


def _opening(tools: bytes, messages: Sequence[Message]) -> _Opening:
    """What two conversations have in common that can reach the same places."""
    return (tools, _key(messages[0]) if messages else None)


def _common(ours: tuple[Message, ...], theirs: tuple[Message, ...]) -> int:
    """Count the messages with which both begin."""
    if theirs[: len(ours)] == ours:
        return len(ours)
    pairs = zip(ours, theirs, strict=False)
    differing = (number for number, (one, other) in enumerate(pairs) if one != other)
    return next(differing, min(len(ours), len(theirs)))


def _repeated(reached: Sequence[_Match]) -> _Record | None:
    """The call whose request ended here, if any: by tool-call ids, then the latest."""
    calls = [
        (match.known_ids, record.index, record)
        for match in reached
        for record in match.node.requests
    ]
    return max(calls, key=lambda item: item[:2])[2] if calls else None


def _again(record: _Record) -> Prepared:
    """Send the prompt of an identical request again, as its sibling, without its opening."""
    return Prepared(
        prompt_ids=_prompt_of(record),
        parent_id=record.parent.id if record.parent is not None else None,
        fork_reason="retry",
    )


def _prompt_of(record: _Record) -> IntArray:
    return record.context_ids()[: record.prompt_tokens - record.opening]


def _step(match: _Match, message: Message, key: _Key, *, depth: int) -> Iterator[_Match]:
    """Go on by one message along every branch that it fits."""
    ids = tuple(tool_call.id for tool_call in message.tool_calls)
    reasoning = _text(message.reasoning)
    for child in match.node.children.get(key, ()):
        reply = child.reply_of
        if reply is None:
            if child.reasoning == reasoning:
                yield _Match(child, match.known_ids, match.extends, match.depth)
        elif reasoning in ("", child.reasoning):
            known = len(set(ids) & set(reply.tool_call_ids))
            yield _Match(child, match.known_ids + known, reply, depth)


def _plain_child(node: _Node, message: Message) -> _Node:
    """Find or add a message that came from the harness."""
    siblings = node.children.setdefault(_key(message), [])
    reasoning = _text(message.reasoning)
    for child in siblings:
        if child.reply_of is None and child.reasoning == reasoning:
            return child
    child = _Node(reasoning=reasoning)
    siblings.append(child)
    return child


def _key(message: Message) -> _Key:
    """A message's normal form; reasoning and tool-call ids are compared apart."""
    if message.role != "assistant":
        return (message.role, message.name, message.content)
    calls = tuple((call.name, _normal_json(call.arguments)) for call in message.tool_calls)
    return (message.role, message.content.strip(), calls)


def _tools_key(tools: Sequence[ToolSpec]) -> bytes:
    fields = [[tool.name, tool.description, plain_json(tool.parameters)] for tool in tools]
    return _hash(fields)


def _hash(value: object) -> bytes:
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # half a surrogate pair, or an integer above 64 bits
        text = json.dumps(value, sort_keys=True, ensure_ascii=True).encode()
    return hashlib.blake2b(text, digest_size=16).digest()


def _normal_json(text: str) -> str:
    """Write JSON as parsing harnesses do: a number is what a double holds, 60000.0 is 60000."""
    try:
        value = json.loads(text, parse_int=_number, parse_float=_number)
    except (ValueError, OverflowError, RecursionError):
        return text.strip()
    return json.dumps(value, sort_keys=True)


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _text(reasoning: str | None) -> str:
    return (reasoning or "").strip()
