"""The journal: what was sampled and what became of it, durable before anyone is told."""

from polar.store.base import CallRecords, Journal, Scored, ScoreRecord, SessionRecord, Unscored
from polar.store.forwarded import ForwardedRecords
from polar.store.reader import JournalReader, read_journal
from polar.store.settings import JournalSettings
from polar.store.sqlite import SqliteJournal

__all__ = [
    "CallRecords",
    "ForwardedRecords",
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
