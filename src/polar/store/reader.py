"""Read-only, synchronous look into a journal, also while a run writes it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from polar.errors import JournalError
from polar.store import schema
from polar.store.base import SessionRecord
from polar.store.codec import Context
from polar.store.damage import damaged, is_damage
from polar.store.queries import (
    nearest_context,
    select_calls,
    select_scores,
    select_sessions,
    select_unscored,
)
from polar.types import Call, CallId, SessionId

__all__ = ["JournalReader", "read_journal"]


class JournalReader:
    """Answers questions about a journal that is open for reading."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def sessions(self, *, phase: str | None = None) -> Sequence[SessionRecord]:
        """Read all sessions, or those of one phase, oldest first."""
        return select_sessions(self._connection, phase)

    def find(self, prefix: str) -> SessionRecord:
        """Find a session by its id or by the beginning of it.

        Raises:
            JournalError: None begins so, or more than one does.
        """
        records = [r for r in self.sessions() if r.session.id.startswith(prefix)]
        exact = [record for record in records if record.session.id == prefix]
        found = exact or records
        if len(found) != 1:
            some = ", ".join(record.session.id for record in found[:5])
            raise JournalError(
                f"{len(found)} sessions have an id that begins with '{prefix}'"
                + (f": {some}, ..." if found else ""),
                fix="Give more of the id." if found else "List the sessions to see their ids.",
            )
        return found[0]

    def calls(self, session_id: SessionId, attempt: int | None = None) -> Sequence[Call]:
        """Read all calls of the session's latest (or given) attempt, in order of arrival.

        Raises:
            JournalError: The session is not known.
        """
        return select_calls(self._connection, session_id, attempt)

    def nearest_context(self, call: Call) -> Context | None:
        """Read the stored call that a new one is best stored as a delta on."""
        return nearest_context(self._connection, call)

    def scores(self, session_id: SessionId, attempt: int | None = None) -> Mapping[CallId, float]:
        """Read the scores of the session's latest (or given) attempt, by call.

        Raises:
            JournalError: The session is not known.
        """
        return select_scores(self._connection, session_id, attempt)

    def unscored(self, session_id: SessionId, attempt: int | None = None) -> Mapping[CallId, str]:
        """Read why calls that were to be scored have no score, by call.

        Raises:
            JournalError: The session is not known.
        """
        return select_unscored(self._connection, session_id, attempt)


@contextmanager
def read_journal(path: Path) -> Iterator[JournalReader]:
    """Open a journal for reading only; it may be written by a running process meanwhile.

    Raises:
        JournalError: There is no journal at the path, or it cannot be read.
    """
    if not path.is_file():
        raise JournalError(
            "there is no journal", where=str(path), fix="Give the journal file of a run folder."
        )
    try:
        connection = _connect(path)
    except sqlite3.Error as error:
        raise _unreadable(error, path) from error
    try:
        schema.check_version(connection, path)
        yield JournalReader(connection)
    except sqlite3.Error as error:
        raise _unreadable(error, path) from error
    finally:
        connection.close()


def _unreadable(error: sqlite3.Error, path: Path) -> JournalError:
    if is_damage(error):
        return damaged(error, path)
    return JournalError(
        f"the journal cannot be read: {error}",
        where=str(path),
        fix="Check permissions there; a journal that was not closed can be read only where its "
        "folder can be written.",
    )


def _connect(path: Path) -> sqlite3.Connection:
    """Connect; a cleanly closed journal is readable also in a folder that is read-only."""
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    connection = sqlite3.connect(address, uri=True, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        connection = sqlite3.connect(f"{address}&immutable=1", uri=True, isolation_level=None)
    return connection
