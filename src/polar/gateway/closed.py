"""What sessions used that are closed."""

from __future__ import annotations

from collections import Counter, OrderedDict

from polar.gateway.policy import SessionUsage
from polar.types import SessionId

__all__ = ["ClosedSessions"]

_KEPT = 10_000


class ClosedSessions:
    """Adds up what closed sessions used, and remembers the last of them one by one."""

    def __init__(self) -> None:
        self._usages: OrderedDict[SessionId, SessionUsage] = OrderedDict()
        self._totals: Counter[str] = Counter()

    def add(self, session_id: SessionId, usage: SessionUsage) -> None:
        """Take note of a session that was closed."""
        self._usages[session_id] = usage
        self._totals.update(usage.counts())
        if len(self._usages) > _KEPT:
            self._usages.popitem(last=False)

    def find(self, session_id: SessionId) -> SessionUsage | None:
        """Find what a session used."""
        return self._usages.get(session_id)

    def forget(self, session_id: SessionId) -> None:
        """Forget a session that is opened again; what it used stays in the totals."""
        self._usages.pop(session_id, None)

    def totals(self) -> Counter[str]:
        """Add up what all used; a copy."""
        return self._totals.copy()
