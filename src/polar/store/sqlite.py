"""The journal in one SQLite file: WAL, one writer, group commit, calls as deltas."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from polar.errors import JournalError, StaleAttempt
from polar.store import schema
from polar.store.base import Scored, ScoreRecord, SessionRecord
from polar.store.codec import CALL_COLUMNS, CallRow, encode_call
from polar.store.damage import damaged, is_damage
from polar.store.outcomes import encode_outcome
from polar.store.queries import (
    latest_attempt,
    nearest_context,
    select_calls,
    select_scores,
    select_sessions,
)
from polar.store.recent import RecentContexts
from polar.store.settings import JournalSettings
from polar.store.writer import Writer
from polar.types import Call, CallId, Outcome, Session, SessionId

__all__ = ["SqliteJournal"]

_INSERT_CALL = (
    f"INSERT INTO calls ({CALL_COLUMNS}) SELECT {', '.join('?' * len(CallRow._fields))} "
    "WHERE (SELECT attempt FROM sessions WHERE id = ?) = ?"
)
"""Fenced: inserts nothing where the attempt is not the latest one."""


class SqliteJournal:
    """Durable storage of sessions, calls and outcomes; an async context manager.

    Every method returns after its data is committed: it survives the death of this process at
    any later moment. With `synchronous="full"` it survives a power cut as well.
    """

    def __init__(
        self, path: Path, *, settings: JournalSettings, clock: Callable[[], float]
    ) -> None:
        self._path = path
        self._settings = settings
        self._clock = clock
        self._recent = RecentContexts(settings.cache_mb * 2**20)
        self._writer = Writer(self._connect, explain=self._explain)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        settings: JournalSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> SqliteJournal:
        """Open a journal, creating the file if there is none; returns at once.

        The file is opened in the journal's own thread: what goes wrong there is raised as
        `JournalError` by `async with` or by the first call of any method.
        """
        return cls(path, settings=settings or JournalSettings(), clock=clock)

    async def __aenter__(self) -> SqliteJournal:
        try:
            await self._writer.run(lambda connection: None)
        except BaseException:
            await self._writer.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def open_session(self, session: Session, *, phase: str, step: int) -> None:
        """Record a new attempt; an older attempt of the same session is fenced off.

        Raises:
            StaleAttempt: This attempt, or a later one, is on record already.
            JournalError: It could not be written.
        """

        def job(connection: sqlite3.Connection) -> None:
            latest = latest_attempt(connection, session.id)
            if latest is not None and latest >= session.attempt:
                raise _stale(session.id, session.attempt, latest)
            connection.execute(
                "INSERT INTO sessions (id, task_id, group_id, phase, step, attempt) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "attempt = excluded.attempt, phase = excluded.phase, step = excluded.step",
                (session.id, session.task_id, session.group_id, phase, step, session.attempt),
            )
            connection.execute(
                "INSERT INTO attempts VALUES (?, ?, ?, 'queued', NULL)",
                (session.id, session.attempt, session.key),
            )
            self._note(connection, session, "queued")

        await self._writer.run(job)

    async def set_state(self, session: Session, state: str, outcome: Outcome | None = None) -> None:
        """Move a session on; an outcome once given stays.

        Raises:
            StaleAttempt: A newer attempt has begun; nothing is changed.
            JournalError: It could not be written.
        """
        text = None if outcome is None else encode_outcome(outcome)

        def job(connection: sqlite3.Connection) -> None:
            _fence(connection, session.id, session.attempt)
            connection.execute(
                "UPDATE attempts SET state = ?, outcome = coalesce(?, outcome) "
                "WHERE session_id = ? AND attempt = ?",
                (state, text, session.id, session.attempt),
            )
            self._note(connection, session, state)

        await self._writer.run(job)

    async def add_call(self, call: Call) -> None:
        """Store a call as a delta on its parent, or on the call stored before it.

        Raises:
            StaleAttempt: A newer attempt has begun; nothing is stored.
            JournalError: It could not be written (disk full); the reply must not be sent.
        """

        def job(connection: sqlite3.Connection) -> None:
            base = self._recent.find(call) or nearest_context(connection, call)
            _insert(connection, encode_call(call, base))

        await self._writer.run(job, afterwards=lambda: self._recent.add(call), one_statement=True)

    async def add_row(self, row: CallRow) -> None:
        """Store a call that another process has encoded, as a delta on what is on record.

        Raises:
            StaleAttempt: A newer attempt has begun; nothing is stored.
            JournalError: It could not be written (disk full); the reply must not be sent.
        """
        await self._writer.run(lambda connection: _insert(connection, row), one_statement=True)

    async def calls(self, session_id: SessionId, attempt: int | None = None) -> Sequence[Call]:
        """Read all calls of the session's latest (or given) attempt, in order of arrival.

        Raises:
            JournalError: The session is not known, or the file cannot be read.
        """
        return await self._writer.run(
            lambda connection: select_calls(connection, session_id, attempt)
        )

    async def add_score(self, score: ScoreRecord) -> None:
        """Store the score of a call that is on record, or why it has none; the first one stays.

        A score of an attempt that was overtaken is stored as well: it changes nothing else.

        Raises:
            JournalError: It could not be written, or the call is not on record.
        """
        result = score.result
        value, reason = (
            (result.score, None) if isinstance(result, Scored) else (None, result.reason)
        )

        def job(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO scores (session_id, attempt, call_id, at, score, reason) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (session_id, attempt, call_id) DO NOTHING",
                (score.session_id, score.attempt, score.call_id, self._clock(), value, reason),
            )

        await self._writer.run(job)

    async def scores(
        self, session_id: SessionId, attempt: int | None = None
    ) -> Mapping[CallId, float]:
        """Read the scores of the session's latest (or given) attempt, by call.

        Raises:
            JournalError: The session is not known, or the file cannot be read.
        """
        return await self._writer.run(
            lambda connection: select_scores(connection, session_id, attempt)
        )

    async def sessions(self, *, phase: str | None = None) -> Sequence[SessionRecord]:
        """Read all sessions, or those of one phase, oldest first."""
        return await self._writer.run(lambda connection: select_sessions(connection, phase))

    async def aclose(self) -> None:
        """Write what waits and close the file."""
        await self._writer.aclose()

    def _note(self, connection: sqlite3.Connection, session: Session, state: str) -> None:
        connection.execute(
            "INSERT INTO events (session_id, attempt, at, state) VALUES (?, ?, ?, ?)",
            (session.id, session.attempt, self._clock(), state),
        )

    def _connect(self) -> sqlite3.Connection:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)  # it holds session keys
            connection = sqlite3.connect(
                self._path, isolation_level=None, timeout=self._settings.busy_timeout_s
            )
        except (sqlite3.Error, OSError) as error:
            raise self._explain(error) from error
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._settings.synchronous}")
            connection.execute("PRAGMA foreign_keys = ON")
            schema.create(connection)
            schema.check_version(connection, self._path)
        except (sqlite3.Error, JournalError) as error:
            connection.close()
            raise (error if isinstance(error, JournalError) else self._explain(error)) from error
        return connection

    def _explain(self, error: sqlite3.Error | OSError) -> JournalError:
        if isinstance(error, sqlite3.Error) and is_damage(error):
            return damaged(error, self._path)
        return JournalError(
            f"the journal could not be written or read: {error}",
            where=str(self._path),
            fix="Check free space and permissions there, then resume; "
            "everything acknowledged before is safe.",
        )


def _insert(connection: sqlite3.Connection, row: CallRow) -> None:
    if connection.execute(_INSERT_CALL, (*row, row.session_id, row.attempt)).rowcount != 1:
        _fence(connection, SessionId(row.session_id), row.attempt)


def _fence(connection: sqlite3.Connection, session_id: SessionId, attempt: int) -> None:
    latest = latest_attempt(connection, session_id)
    if latest is None:
        raise JournalError(
            "the journal knows no such session", where=session_id, fix="Open the session first."
        )
    if latest != attempt:
        raise _stale(session_id, attempt, latest)


def _stale(session_id: SessionId, attempt: int, latest: int) -> StaleAttempt:
    return StaleAttempt(
        f"attempt {attempt} is stale: attempt {latest} is on record", where=session_id
    )
