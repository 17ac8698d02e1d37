"""Questions to the journal's tables, for the writer and for read-only use."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from polar.errors import JournalError
from polar.store import schema
from polar.store.base import SessionRecord
from polar.store.codec import CALL_COLUMNS, CallRow, Context, decode_calls
from polar.store.outcomes import decode_outcome
from polar.types import Call, CallId, Session, SessionId, TaskId

__all__ = [
    "latest_attempt",
    "nearest_context",
    "select_calls",
    "select_scores",
    "select_sessions",
    "select_unscored",
]

_SESSIONS = """
SELECT s.id, s.task_id, s.group_id, s.attempt, a.key, a.state, a.outcome, s.step, s.phase
FROM sessions s JOIN attempts a ON a.session_id = s.id AND a.attempt = s.attempt
WHERE ?1 IS NULL OR s.phase = ?1 ORDER BY s.ordinal
"""


def select_sessions(connection: sqlite3.Connection, phase: str | None) -> list[SessionRecord]:
    """Read all sessions, or those of a phase, oldest first."""
    found = []
    for row in connection.execute(_SESSIONS, (phase,)):
        with _damaged(connection, row[0]):
            found.append(_record(row))
    return found


def latest_attempt(connection: sqlite3.Connection, session_id: SessionId) -> int | None:
    """Read the number of a session's latest attempt; None for an unknown session."""
    row = connection.execute("SELECT attempt FROM sessions WHERE id = ?", (session_id,)).fetchone()
    return None if row is None else int(row[0])


def select_calls(
    connection: sqlite3.Connection, session_id: SessionId, attempt: int | None
) -> list[Call]:
    """Read the calls of one attempt, the latest if none is named, in order of arrival.

    Raises:
        JournalError: The session is not known.
    """
    chosen = _attempt(connection, session_id, attempt)
    with _damaged(connection, session_id):
        calls = decode_calls(_rows(connection, session_id, chosen))
    return sorted(calls, key=lambda call: call.index)


def select_scores(
    connection: sqlite3.Connection, session_id: SessionId, attempt: int | None
) -> dict[CallId, float]:
    """Read the scores of one attempt, the latest if none is named, by call.

    Raises:
        JournalError: The session is not known.
    """
    rows = _score_rows(connection, session_id, attempt)
    return {CallId(call_id): score for call_id, score, _ in rows if score is not None}


def select_unscored(
    connection: sqlite3.Connection, session_id: SessionId, attempt: int | None
) -> dict[CallId, str]:
    """Read why calls of one attempt have no score, by call.

    Raises:
        JournalError: The session is not known.
    """
    rows = _score_rows(connection, session_id, attempt)
    return {CallId(call_id): reason for call_id, score, reason in rows if score is None}


def nearest_context(connection: sqlite3.Connection, call: Call) -> Context | None:
    """Read the stored call that a new one is best stored as a delta on."""
    rows = _rows(connection, call.session_id, call.attempt)
    if not rows:
        return None
    base_id = next((row.id for row in rows if row.id == call.parent_id), rows[-1].id)
    found = next(stored for stored in decode_calls(_chain(rows, base_id)) if stored.id == base_id)
    return Context.after(found)


def _attempt(connection: sqlite3.Connection, session_id: SessionId, attempt: int | None) -> int:
    latest = latest_attempt(connection, session_id)
    if latest is None:
        raise JournalError(
            "the journal knows no such session",
            where=session_id,
            fix="List the sessions to see their ids.",
        )
    return latest if attempt is None else attempt


def _score_rows(
    connection: sqlite3.Connection, session_id: SessionId, attempt: int | None
) -> list[tuple[str, float | None, str]]:
    chosen = _attempt(connection, session_id, attempt)
    if schema.version_of(connection) == 1:
        return []
    return connection.execute(
        "SELECT call_id, score, reason FROM scores "
        "WHERE session_id = ? AND attempt = ? ORDER BY ordinal",
        (session_id, chosen),
    ).fetchall()


def _chain(rows: list[CallRow], call_id: str) -> list[CallRow]:
    """Pick a call and all its bases, the first base first."""
    by_id = {row.id: row for row in rows}
    chain: list[CallRow] = []
    wanted: str | None = call_id
    while wanted is not None:
        chain.append(by_id[wanted])
        wanted = by_id[wanted].base_id
    return chain[::-1]


def _rows(connection: sqlite3.Connection, session_id: SessionId, attempt: int) -> list[CallRow]:
    columns = CALL_COLUMNS
    version = schema.version_of(connection)
    if version in (1, 2):
        columns = columns.replace("capture", "'tokens'")
    if version == 1:
        columns = columns.replace("sent", "NULL")
    cursor = connection.execute(
        f"SELECT {columns} FROM calls WHERE session_id = ? AND attempt = ? ORDER BY ordinal",
        (session_id, attempt),
    )
    return [CallRow(*row) for row in cursor]


def _record(row: tuple[str, str, str, int, str, str, str | None, int, str]) -> SessionRecord:
    session_id, task_id, group_id, attempt, key, state, outcome, step, phase = row
    return SessionRecord(
        session=Session(SessionId(session_id), TaskId(task_id), group_id, attempt, key),
        state=state,
        outcome=None if outcome is None else decode_outcome(outcome),
        step=step,
        phase=phase,
    )


@contextmanager
def _damaged(connection: sqlite3.Connection, session_id: str) -> Iterator[None]:
    """Say which entry of the journal is not what Polar wrote.

    Raises:
        JournalError: The entry cannot be read.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        file = next((row[2] for row in connection.execute("PRAGMA database_list")), "")
        raise JournalError(
            f"an entry of session {session_id!r} is damaged ({type(error).__name__}: {error})",
            where=file or None,
            fix="Restore the journal from a copy, or go on in a new run folder.",
        ) from error
