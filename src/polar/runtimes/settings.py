"""What users can set about runtimes."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

__all__ = ["BubblewrapSettings", "LocalSettings"]


class LocalSettings(BaseModel):
    """Settings of the `local` runtime."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    preload: bool = True
    """Whether harnesses that allow it are forked from a process that has imported them already."""


class BubblewrapSettings(BaseModel):
    """Settings of the `bubblewrap` runtime."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    executable: Path | None = None
    """Path of `bwrap`; absent: looked up on PATH."""
    visible: tuple[Path, ...] = ()
    """More host folders to show inside, read-only, at the same path."""
    preload: bool = True
    """Whether harnesses that allow it are forked from a process that has imported them already."""
