"""The journal: what was sampled and what became of it, durable before anyone is told."""

from polar.store.base import Journal, Scored, ScoreRecord, SessionRecord, Unscored
from polar.store.reader import JournalReader, read_journal
from polar.store.settings import JournalSettings
from polar.store.sqlite import SqliteJournal

__all__ = [
    "Journal",
    "JournalReader",
    "JournalSettings",
    "ScoreRecord",
    "Scored",
    "SessionRecord",
    "SqliteJournal",
    "Unscored",
    "read_journal",
]
