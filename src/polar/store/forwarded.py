"""Calls that another process puts on record: encoded here, so that it has little left to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from polar.store.base import ScoreRecord
from polar.store.codec import CallRow, Context, encode_call
from polar.store.reader import read_journal
from polar.store.recent import RecentContexts
from polar.types import Call

__all__ = ["ForwardedRecords"]


class ForwardedRecords:
    """Gives calls and scores to the process that writes the journal, and waits until it has.

    Args:
        send: Returns when what it was given is on record.
        journal: The journal's file, read where a session's earlier calls are no longer in memory.
        cache_mb: Memory for earlier calls.
    """

    def __init__(
        self,
        send: Callable[[CallRow | ScoreRecord], Awaitable[object]],
        journal: Path,
        cache_mb: int,
    ) -> None:
        self._send = send
        self._journal = journal
        self._recent = RecentContexts(cache_mb * 2**20)

    async def add_call(self, call: Call) -> None:
        """Have a call stored as a delta on its parent, or on the call stored before it.

        Raises:
            StaleAttempt: A newer attempt has begun; nothing is stored.
            JournalError: It could not be written; the reply must not be sent.
        """
        base = self._recent.find(call)
        if base is None and call.index > 0:
            base = await asyncio.to_thread(self._read_base, call)
        await self._send(encode_call(call, base))
        self._recent.add(call)

    async def add_score(self, score: ScoreRecord) -> None:
        """Have the score of a call stored.

        Raises:
            JournalError: It could not be written, or the call is not on record.
        """
        await self._send(score)

    def _read_base(self, call: Call) -> Context | None:
        with read_journal(self._journal) as journal:
            return journal.nearest_context(call)
