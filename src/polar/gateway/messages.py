"""What a gateway's owner asks of its workers, and what they tell beside calls and scores."""

from __future__ import annotations

from dataclasses import dataclass

from polar.errors import JournalError
from polar.gateway.policy import SessionPolicy
from polar.types import Session, SessionId

__all__ = [
    "Close",
    "FiguresOf",
    "Open",
    "Pause",
    "Ping",
    "RecordingFailed",
    "Resume",
    "Stop",
    "UsageOf",
]


@dataclass(frozen=True, slots=True)
class Open:
    """Let a session in."""

    session: Session
    policy: SessionPolicy


@dataclass(frozen=True, slots=True)
class Close:
    """Close a session, and answer what it used."""

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class UsageOf:
    """Answer what a session used."""

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class FiguresOf:
    """Answer what was done."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Hold new calls back."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Let calls through again."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer, to show that it is not stuck."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End, in good order."""


@dataclass(frozen=True, slots=True)
class RecordingFailed:
    """A worker could not put a call on record."""

    error: JournalError
