"""What a metrics writer does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

__all__ = ["MetricsWriter", "numbers"]


class MetricsWriter(Protocol):
    """Takes metrics rows, as they are written to the run folder."""

    def add(self, row: Mapping[str, object]) -> None:
        """Take one row."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


def numbers(row: Mapping[str, object]) -> dict[str, float]:
    """Name each number of a row by its phase: `train/reward_mean`, `train/dropped/too_long`.

    What is absent, or is no number, is left out.
    """
    inner = {key: value for key, value in row.items() if key not in {"phase", "step"}}
    return {f"{row['phase']}/{key}": value for key, value in _flat(inner)}


def _flat(values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}/{inner}", number) for inner, number in _flat(value))
        elif isinstance(value, tuple | list):
            listed = {str(index): each for index, each in enumerate(value)}
            yield from ((f"{key}/{inner}", number) for inner, number in _flat(listed))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key, float(value)
