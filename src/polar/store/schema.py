"""The journal's tables and their version."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from polar.errors import JournalError

__all__ = ["SCHEMA_VERSION", "check_version", "create"]

SCHEMA_VERSION = 1

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
    sampling        TEXT NOT NULL,      -- JSON
    reply           TEXT NOT NULL,      -- JSON
    finish_reason   TEXT NOT NULL,
    kind            TEXT NOT NULL,
    fork_reason     TEXT,
    started_at      REAL NOT NULL,
    ended_at        REAL NOT NULL,
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


def create(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty database; leave an existing journal alone."""
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return
    connection.executescript(
        f"BEGIN IMMEDIATE; {_TABLES} INSERT INTO schema_version VALUES ({SCHEMA_VERSION}); COMMIT;"
    )


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that this code cannot read or write faithfully.

    Raises:
        JournalError: It is no journal, or one of another version.
    """
    try:
        row = connection.execute("SELECT version FROM schema_version").fetchone()
    except sqlite3.OperationalError as error:
        raise JournalError(
            f"this file is not a Polar journal ({error})",
            where=str(path),
            fix="Give the journal file of a run folder.",
        ) from error
    if row is None or row[0] != SCHEMA_VERSION:
        found = row[0] if row else "none"
        raise JournalError(
            f"the journal has schema version {found}, this Polar reads version {SCHEMA_VERSION}",
            where=str(path),
            fix="Use the Polar version that wrote it, or start a new run folder.",
        )
