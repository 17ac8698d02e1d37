"""The token tree: all calls of a session or a group as one prefix tree of token segments."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from polar.errors import FidelityError
from polar.types import Call, CallId, IntArray

__all__ = ["ROOT", "Segment", "TokenTree"]

ROOT = 0
"""Index of the empty segment that everything hangs below."""

_OrderKey = tuple[str, int, int, str]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens without a fork."""

    parent: int
    """Index of the segment before this one."""
    token_ids: IntArray
    """int32 [segment]"""
    call_id: CallId | None
    """The call that sampled these tokens; absent for context."""
    offset: int
    """Where the segment starts within the call's sampled tokens; 0 for context."""


class TokenTree:
    """A prefix tree whose sampled tokens each belong to exactly one call.

    Context merges with whatever equal tokens are there already, context or sampled. Sampled
    tokens never merge: the same prompt sent twice is two branches, even where both sampled the
    same. The tree depends on the calls alone, not on the order in which they are added: calls
    are inserted in the order of (session, attempt, index), and one that comes late makes the
    tree anew.

    Memory is linear in unique tokens; there is no Python object per token.
    """

    def __init__(self, calls: Iterable[Call] = ()) -> None:
        self._calls: list[Call] = []
        self._clear()
        for call in sorted(calls, key=_order_key):
            self.add(call)

    @classmethod
    def merged(cls, trees: Iterable[TokenTree]) -> TokenTree:
        """Merge trees of one session, or of a task's sessions: their prompt is then stored once.

        A call that is in several trees is in the result once, so merging twice changes nothing.

        Raises:
            FidelityError: Two trees have different calls of one id.
        """
        calls: dict[CallId, Call] = {}
        for call in (call for tree in trees for call in tree.calls):
            known = calls.setdefault(call.id, call)
            if not _same(known, call):
                raise FidelityError("two calls have one id", where=f"call {call.id}")
        return cls(calls.values())

    def __len__(self) -> int:
        """Count the segments, the root included."""
        return len(self._parents)

    @property
    def size(self) -> int:
        """Unique tokens."""
        return self._size

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls in canonical order."""
        return tuple(self._calls)

    def add(self, call: Call) -> None:
        """Insert a call: O(new tokens) to store, one comparison of its prompt to place it.

        Raises:
            FidelityError: A call of this id is in the tree already.
        """
        if call.id in self._ends:
            raise FidelityError("a call appears twice", where=f"call {call.id}")
        if not self._calls or _order_key(self._calls[-1]) < _order_key(call):
            self._calls.append(call)
            self._insert(call)
            return
        bisect.insort(self._calls, call, key=_order_key)
        self._clear()
        for known in self._calls:
            self._insert(known)

    def segment(self, index: int) -> Segment:
        """Look at one segment; `token_ids` is a view that a later `add` may leave stale."""
        return Segment(
            parent=self._parents[index],
            token_ids=self._ids(index),
            call_id=self._owners[index],
            offset=self._offsets[index],
        )

    def path(self, call_id: CallId) -> list[int]:
        """Segments from below the root to the last sampled token of a call."""
        indices = []
        index = self._ends[call_id]
        while index != ROOT:
            indices.append(index)
            index = self._parents[index]
        return indices[::-1]

    def end(self, call_id: CallId) -> int:
        """Segment that a call's last sampled token ends."""
        return self._ends[call_id]

    def leaves(self) -> list[CallId]:
        """Calls below whose last token nothing hangs, in canonical order."""
        return [call.id for call in self._calls if not self._children[self._ends[call.id]]]

    def _clear(self) -> None:
        self._tokens: IntArray = np.empty(1024, dtype=np.int32)
        self._size = 0
        self._parents: list[int] = [ROOT]
        self._starts: list[int] = [0]
        self._lengths: list[int] = [0]
        self._offsets: list[int] = [0]
        self._owners: list[CallId | None] = [None]
        self._children: list[dict[int, list[int]]] = [{}]
        self._ends: dict[CallId, int] = {}
        self._by_id: dict[CallId, Call] = {}

    def _insert(self, call: Call) -> None:
        index, depth = self._place(call)
        index, depth = self._descend(index, call.prompt_ids, depth)
        if depth < len(call.prompt_ids):
            index = self._append(index, call.prompt_ids[depth:], owner=None)
        if len(call.sampled_ids):
            index = self._append(index, call.sampled_ids, owner=call.id)
        self._ends[call.id] = index
        self._by_id[call.id] = call

    def _place(self, call: Call) -> tuple[int, int]:
        """Segment to start from and the prompt tokens before it: the named parent's if it fits."""
        parent = self._by_id.get(call.parent_id) if call.parent_id is not None else None
        if parent is None:
            return ROOT, 0
        prompt = len(parent.prompt_ids)
        depth = prompt + len(parent.sampled_ids)
        if _begins_with(call.prompt_ids, parent.prompt_ids) and np.array_equal(
            call.prompt_ids[prompt:depth], parent.sampled_ids
        ):
            return self._ends[parent.id], depth
        return ROOT, 0

    def _descend(self, index: int, ids: IntArray, depth: int) -> tuple[int, int]:
        """Follow `ids[depth:]` as deep as the tree goes; split the segment it ends within."""
        best_index, best_depth, best_length = index, depth, self._lengths[index]
        stack = [(index, depth)]
        while stack:
            at, before = stack.pop()
            if before == len(ids):
                continue
            for child in self._children[at].get(int(ids[before]), ()):
                common = _common_prefix(self._ids(child), ids[before:])
                if before + common > best_depth:
                    best_index, best_depth, best_length = child, before + common, common
                if common == self._lengths[child]:
                    stack.append((child, before + common))
        if best_length < self._lengths[best_index]:
            best_index = self._split(best_index, best_length)
        return best_index, best_depth

    def _split(self, index: int, length: int) -> int:
        """Cut a segment after `length` tokens; `index` stays the lower part, return the upper."""
        parent, start = self._parents[index], self._starts[index]
        first, cut = int(self._tokens[start]), int(self._tokens[start + length])
        upper = self._new_segment(
            parent, start, length, owner=self._owners[index], offset=self._offsets[index]
        )
        siblings = self._children[parent][first]
        siblings[siblings.index(index)] = upper
        self._children[upper][cut] = [index]
        self._parents[index] = upper
        self._starts[index] += length
        self._lengths[index] -= length
        if self._owners[index] is not None:
            self._offsets[index] += length
        return upper

    def _append(self, parent: int, ids: IntArray, *, owner: CallId | None) -> int:
        start = self._size
        self._reserve(len(ids))
        self._tokens[start : start + len(ids)] = ids
        self._size += len(ids)
        index = self._new_segment(parent, start, len(ids), owner=owner, offset=0)
        self._children[parent].setdefault(int(ids[0]), []).append(index)
        return index

    def _new_segment(
        self, parent: int, start: int, length: int, *, owner: CallId | None, offset: int
    ) -> int:
        self._parents.append(parent)
        self._starts.append(start)
        self._lengths.append(length)
        self._owners.append(owner)
        self._offsets.append(offset)
        self._children.append({})
        return len(self._parents) - 1

    def _reserve(self, more: int) -> None:
        if self._size + more > len(self._tokens):
            grown = np.empty(max(self._size + more, 2 * len(self._tokens)), dtype=np.int32)
            grown[: self._size] = self._tokens[: self._size]
            self._tokens = grown

    def _ids(self, index: int) -> IntArray:
        start = self._starts[index]
        return self._tokens[start : start + self._lengths[index]]


def _order_key(call: Call) -> _OrderKey:
    return (call.session_id, call.attempt, call.index, call.id)


def _same(a: Call, b: Call) -> bool:
    return a is b or (
        _order_key(a) == _order_key(b)
        and a.parent_id == b.parent_id
        and np.array_equal(a.prompt_ids, b.prompt_ids)
        and np.array_equal(a.sampled_ids, b.sampled_ids)
        and np.array_equal(a.logprobs, b.logprobs)
        and np.array_equal(a.weight_versions, b.weight_versions)
    )


def _begins_with(ids: IntArray, start: IntArray) -> bool:
    """Compare the beginning; O(1) where both are views of one memory, as a journal hands out."""
    if len(ids) < len(start):
        return False
    return _same_memory(ids, start) or np.array_equal(ids[: len(start)], start)


def _same_memory(a: IntArray, b: IntArray) -> bool:
    """Say whether two arrays begin at one address and are laid out alike."""
    there, here = a.__array_interface__, b.__array_interface__
    laid_out = all(there[key] == here[key] for key in ("typestr", "strides"))
    return laid_out and bool(there["data"][0] == here["data"][0])


def _common_prefix(a: IntArray, b: IntArray) -> int:
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
