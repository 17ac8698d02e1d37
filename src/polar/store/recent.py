"""Contexts of recently stored calls, for later calls to be deltas on."""

from __future__ import annotations

from collections import OrderedDict

from polar.store.codec import Context
from polar.types import Call, CallId, SessionId

__all__ = ["RecentContexts"]


class RecentContexts:
    """Contexts of recently stored calls, bounded in memory; owned by one thread."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._size_bytes = 0
        self._contexts: OrderedDict[tuple[SessionId, int, CallId], Context] = OrderedDict()
        self._last: dict[tuple[SessionId, int], CallId] = {}

    def find(self, call: Call) -> Context | None:
        """Find the parent's context, or for a call without one that of the call stored last."""
        attempt = (call.session_id, call.attempt)
        base_id = call.parent_id or self._last.get(attempt)
        return None if base_id is None else self._contexts.get((*attempt, base_id))

    def add(self, call: Call) -> None:
        """Remember a call, and forget the oldest ones beyond the capacity."""
        context = Context.after(call)
        self._contexts[call.session_id, call.attempt, call.id] = context
        self._last[call.session_id, call.attempt] = call.id
        self._size_bytes += context.size_bytes
        while self._size_bytes > self._capacity_bytes and len(self._contexts) > 1:
            (session_id, attempt, call_id), oldest = self._contexts.popitem(last=False)
            self._size_bytes -= oldest.size_bytes
            if self._last.get((session_id, attempt)) == call_id:
                del self._last[session_id, attempt]
