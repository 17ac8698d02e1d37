"""What a user can set about supervised fine-tuning on recorded sessions."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["SftSettings"]


class SftSettings(BaseModel):
    """Which recorded sessions are imitated, and how long."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    min_reward: float | None = None
    """Leave out sessions that earned less; absent: any reward will do."""
    best_of: Annotated[int, Field(ge=1)] | None = None
    """Keep at most so many sessions of a task: those with the highest reward, and of equals those
    that sampled the fewest tokens; absent: all."""
    phases: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Take sessions of these phases alone; empty: of all but the held-out ones."""
    epochs: Annotated[int, Field(ge=1)] = 1
    """Passes over the sessions."""
    batch_sessions: Annotated[int, Field(ge=1)] = 8
    """Sessions of an optimizer step."""
    lr: Annotated[float, Field(gt=0.0)] = 2e-5
    """Learning rate."""
