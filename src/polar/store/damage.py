"""Tells a damaged journal file from a full disk, and says what to do about it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from polar.errors import JournalError

__all__ = ["damaged", "is_damage"]

_PRIMARY = 0xFF
"""The extended result codes of SQLite keep the primary one in their last byte."""


def is_damage(error: sqlite3.Error) -> bool:
    """Tell whether the file is not what SQLite wrote."""
    code = getattr(error, "sqlite_errorcode", None)  # absent where Python itself complains
    return code is not None and code & _PRIMARY in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def damaged(error: sqlite3.Error, path: Path) -> JournalError:
    """Say that a journal is damaged."""
    return JournalError(
        f"the journal is damaged: {error}",
        where=str(path),
        fix="Restore it from a copy, or save what `sqlite3 journal.sqlite .recover` can read, "
        "and go on in a new run folder.",
    )
