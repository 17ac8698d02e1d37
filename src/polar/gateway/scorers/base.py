"""What a scorer is, and what counts as a score."""

from __future__ import annotations

import math
from numbers import Real
from typing import Protocol

from polar.errors import ScorerFailed
from polar.types import Call

__all__ = ["Scorer", "as_score"]


class Scorer(Protocol):
    """Says what a call was worth."""

    async def score(self, call: Call) -> float | None:
        """Score a call that is on record; None says that it has no score.

        Raises:
            ScorerFailed: The user's code broke, took too long or gave no number.
        """
        ...


def as_score(value: object) -> float | None:
    """Take what user code gave for a score.

    Raises:
        ScorerFailed: It is no finite number.
    """
    if value is None:
        return None
    if not isinstance(value, Real):
        raise ScorerFailed(f"the scorer gave {type(value).__name__}, which is no number")
    score = float(value)
    if not math.isfinite(score):
        raise ScorerFailed(f"the scorer gave {score}, which is not finite")
    return score
