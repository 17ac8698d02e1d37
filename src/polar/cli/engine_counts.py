"""What only some engines do besides sampling, in words and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from polar.types import BuildReport

__all__ = ["engine_counts"]


def engine_counts(reports: Iterable[BuildReport]) -> Mapping[str, int]:
    """Add up what the engine did for some sessions; what it never did is left out.

    Returns:
        What, in plain words -> tokens.
    """
    counts: Counter[str] = Counter()
    for report in reports:
        counts["tokens whose logprob was asked for afterwards"] += report.measured_tokens
        counts["tokens sampled behind the ends of replies, given to nobody"] += (
            report.discarded_tokens
        )
    return +counts
