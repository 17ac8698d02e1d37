"""What the journal keeps: sessions, calls and outcomes, durable before anyone is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from polar.types import Call, CallId, Outcome, Session, SessionId

__all__ = ["CallRecords", "Journal", "ScoreRecord", "Scored", "SessionRecord", "Unscored"]


@dataclass(frozen=True, slots=True)
class Scored:
    """User code found a score for a call."""

    score: float


@dataclass(frozen=True, slots=True)
class Unscored:
    """There is no score, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class ScoreRecord:
    """What became of the scoring of one call that is on record."""

    session_id: SessionId
    attempt: int
    call_id: CallId
    result: Scored | Unscored


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as the journal knows it."""

    session: Session
    state: str
    """queued, preparing, ready, running, grading, completed, failed, timed_out, cancelled"""
    outcome: Outcome | None
    step: int
    """The training step it was collected for; -1 never occurs: evaluation uses its own phase."""
    phase: str
    """`train`, `heldout_before`, `heldout_after`, `warm_start`, `rollout`, `control`,
    `external` (opened through the control API), `run`."""


class CallRecords(Protocol):
    """Where the gateway puts calls; every method returns only when they would survive a kill."""

    async def add_call(self, call: Call) -> None:
        """Store a call as a delta on its parent.

        Raises:
            JournalError: It could not be written (disk full); the reply must not be sent.
        """
        ...

    async def add_score(self, score: ScoreRecord) -> None:
        """Store the score of a call that is on record, or why it has none; the first one stays.

        Raises:
            JournalError: It could not be written, or the call is not on record.
        """
        ...


class Journal(CallRecords, Protocol):
    """Durable storage; every method returns only when its data would survive a killed process."""

    async def open_session(self, session: Session, *, phase: str, step: int) -> None:
        """Record a new attempt; an older attempt of the same session is fenced off."""
        ...

    async def set_state(self, session: Session, state: str, outcome: Outcome | None = None) -> None:
        """Move a session on; a stale attempt's change is ignored and reported by `JournalError`."""
        ...

    async def calls(self, session_id: SessionId, attempt: int | None = None) -> Sequence[Call]:
        """All calls of the session's latest (or given) attempt, in order of arrival."""
        ...

    async def scores(
        self, session_id: SessionId, attempt: int | None = None
    ) -> Mapping[CallId, float]:
        """Scores of the session's latest (or given) attempt by call; calls without are absent."""
        ...

    async def sessions(self, *, phase: str | None = None) -> Sequence[SessionRecord]:
        """All sessions, oldest first."""
        ...

    async def aclose(self) -> None:
        """Write what waits and close."""
        ...
