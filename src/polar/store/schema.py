"""The journal's tables and their version."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from polar.errors import JournalError

__all__ = ["SCHEMA_VERSION", "check_version", "create", "version_of"]

SCHEMA_VERSION = 3
_READABLE = (1, 2, SCHEMA_VERSION)

_SINCE_2 = """
CREATE TABLE scores (
    ordinal    INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    attempt    INTEGER NOT NULL,
    call_id    TEXT NOT NULL,
    at         REAL NOT NULL,           -- Unix seconds
    score      REAL,                    -- NULL: there is none, for the reason given
    reason     TEXT,
    FOREIGN KEY (session_id, attempt, call_id) REFERENCES calls (session_id, attempt, id),
    UNIQUE (session_id, attempt, call_id)
);
"""

_TABLES = """
CREATE TABLE schema_version (version INTEGER NOT NULL);

CREATE TABLE sessions (
    ordinal  INTEGER PRIMARY KEY,
    id       TEXT NOT NULL UNIQUE,
    task_id  TEXT NOT NULL,
    group_id TEXT NOT NULL,
    phase    TEXT NOT NULL,
    step     INTEGER NOT NULL,
    attempt  INTEGER NOT NULL           -- the latest; older ones are fenced off
);

CREATE TABLE attempts (
    session_id TEXT NOT NULL REFERENCES sessions (id),
    attempt    INTEGER NOT NULL,
    key        TEXT NOT NULL,
    state      TEXT NOT NULL,
    outcome    TEXT,                    -- tagged JSON
    PRIMARY KEY (session_id, attempt)
) WITHOUT ROWID;

CREATE TABLE calls (
    ordinal         INTEGER PRIMARY KEY,
    session_id      TEXT NOT NULL,
    attempt         INTEGER NOT NULL,
    id              TEXT NOT NULL,
    call_index      INTEGER NOT NULL,
    parent_id       TEXT,
    base_id         TEXT,               -- the earlier call of the attempt this row is a delta on
    shared_tokens   INTEGER NOT NULL,   -- leading prompt tokens = base's prompt + sampled tokens
    prompt_tail     BLOB NOT NULL,      -- the other prompt tokens, int32 little-endian
    sampled         BLOB NOT NULL,      -- int32 little-endian
    logprobs        BLOB NOT NULL,      -- float32 little-endian
    versions        BLOB NOT NULL,      -- int32 little-endian
    shared_messages INTEGER NOT NULL,   -- leading messages = base's messages + reply
    messages_tail   TEXT NOT NULL,      -- the other messages, JSON
    tools           TEXT,               -- JSON; NULL: those of the base
    sampling        TEXT NOT NULL,      -- JSON, with what the engine counted beside the parameters
    reply           TEXT NOT NULL,      -- JSON
    finish_reason   TEXT NOT NULL,
    kind            TEXT NOT NULL,
    fork_reason     TEXT,
    started_at      REAL NOT NULL,
    ended_at        REAL NOT NULL,
    sent            TEXT,               -- JSON; NULL: the model saw what the harness sent
    capture         TEXT NOT NULL DEFAULT 'tokens',
    FOREIGN KEY (session_id, attempt) REFERENCES attempts (session_id, attempt),
    UNIQUE (session_id, attempt, id)
);

CREATE TABLE events (
    ordinal    INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    attempt    INTEGER NOT NULL,
    at         REAL NOT NULL,           -- Unix seconds
    state      TEXT NOT NULL
);
"""

_UPGRADES = {
    1: ("ALTER TABLE calls ADD COLUMN sent TEXT", _SINCE_2),
    2: ("ALTER TABLE calls ADD COLUMN capture TEXT NOT NULL DEFAULT 'tokens'",),
}
"""Version -> what makes the next one of it."""


def create(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty database, and bring a journal of an older version up to date.

    A file that is no journal is left alone.
    """
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        _upgrade(connection)
        return
    connection.executescript(
        f"BEGIN IMMEDIATE; {_TABLES} {_SINCE_2} "
        f"INSERT INTO schema_version VALUES ({SCHEMA_VERSION}); COMMIT;"
    )


def version_of(connection: sqlite3.Connection) -> int | None:
    """Read a journal's version; None where it names none."""
    row = connection.execute("SELECT version FROM schema_version").fetchone()
    return None if row is None else int(row[0])


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that this code cannot read or write faithfully.

    Raises:
        JournalError: It is no journal, or one of another version.
    """
    try:
        found = version_of(connection)
    except sqlite3.OperationalError as error:
        raise JournalError(
            f"this file is not a Polar journal ({error})",
            where=str(path),
            fix="Give the journal file of a run folder.",
        ) from error
    if found not in _READABLE:
        raise JournalError(
            f"the journal has schema version {'none' if found is None else found}, "
            f"this Polar reads versions {_READABLE[0]} to {_READABLE[-1]}",
            where=str(path),
            fix="Use the Polar version that wrote it, or start a new run folder.",
        )


def _upgrade(connection: sqlite3.Connection) -> None:
    """Rewrite an older version as this one, in one transaction that another process may win."""
    if not connection.execute(
        "SELECT count(*) FROM sqlite_master WHERE name = 'schema_version'"
    ).fetchone()[0]:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = version_of(connection)
        if found in _UPGRADES:
            for version in range(found, SCHEMA_VERSION):
                for statement in _UPGRADES[version]:
                    connection.execute(statement)
            connection.execute("UPDATE schema_version SET version = ?", (SCHEMA_VERSION,))
        connection.execute("COMMIT")
    except sqlite3.Error:
        connection.execute("ROLLBACK")
        raise
