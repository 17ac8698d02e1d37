"""Settings of the journal."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["JournalSettings"]


class JournalSettings(BaseModel):
    """How durable the journal is, and how long it waits for a lock."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    synchronous: Literal["normal", "full"] = "normal"
    """`normal`: everything acknowledged survives a killed process; a power cut may take the last
    moments, never the file. `full`: it survives a power cut too, at one disk flush a commit."""
    busy_timeout_s: float = Field(default=10.0, gt=0)
    """Longest wait for another process that holds the journal's write lock."""
    cache_mb: int = Field(default=64, ge=1)
    """Memory for recent calls, on which the next ones are stored as deltas."""
