"""Scores calls that are on record, beside everything else, and puts the scores on record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Self

from polar.errors import JournalError, ScorerFailed
from polar.gateway import scorers
from polar.gateway.scorers import Scorer, ScorerSpec
from polar.store.base import CallRecords, Scored, ScoreRecord, Unscored
from polar.types import Call, CallKind

__all__ = ["Scoring"]

_log = logging.getLogger("polar.gateway")


class Scoring:
    """Gives every call of some kinds to the scorer, so many at a time.

    Args:
        scorer: The user's code.
        journal: Where scores are kept.
        kinds: Kinds of calls that are scored.
        workers: Calls that are scored at the same time.
        on_failure: Told when the journal can no longer be written.
    """

    def __init__(
        self,
        scorer: Scorer,
        journal: CallRecords,
        *,
        kinds: frozenset[CallKind],
        workers: int,
        on_failure: Callable[[JournalError], None],
    ) -> None:
        self._scorer = scorer
        self._journal = journal
        self._kinds = kinds
        self._slots = asyncio.Semaphore(workers)
        self._on_failure = on_failure

    @classmethod
    def of(
        cls, spec: ScorerSpec, journal: CallRecords, *, on_failure: Callable[[JournalError], None]
    ) -> Self:
        """Make what the config declares.

        Raises:
            ConfigError: The scorer cannot be found.
        """
        return cls(
            scorers.make(spec),
            journal,
            kinds=frozenset(spec.kinds),
            workers=spec.workers,
            on_failure=on_failure,
        )

    def wants(self, call: Call) -> bool:
        """Tell whether a call is to be scored: what was broken off is not."""
        return call.kind in self._kinds and call.finish_reason not in ("abandoned", "error")

    async def score(self, call: Call, *, on_scored: Callable[[Scored | Unscored], None]) -> None:
        """Score a call; what goes wrong in the user's code is recorded and not raised.

        Args:
            call: On record.
            on_scored: Called with the result once that is on record too.
        """
        async with self._slots:
            result = await self._result(call)
        record = ScoreRecord(call.session_id, call.attempt, call.id, result)
        try:
            await self._journal.add_score(record)
        except JournalError as error:
            self._on_failure(error)
            return
        on_scored(result)

    async def _result(self, call: Call) -> Scored | Unscored:
        try:
            score = await self._scorer.score(call)
        except ScorerFailed as error:
            _log.warning("call %s has no score: %s", call.id, error.what, exc_info=error.__cause__)
            return Unscored(error.what)
        except Exception as error:
            _log.exception("call %s has no score", call.id)
            return Unscored(f"the scorer failed: {error!r}")
        return Unscored("the scorer gave none") if score is None else Scored(score)
