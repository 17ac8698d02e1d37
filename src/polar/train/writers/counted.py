"""Rows reach the writers once, whatever becomes of the process that made them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from polar.train.records import MetricsLog
from polar.train.writers.base import MetricsWriter

__all__ = ["CountedRows"]


class CountedRows:
    """Holds rows back until the saved state counts them: then no resumed run makes them again.

    What a writer was given cannot be taken back from every one of them. Which rows were sent is
    on record before they are sent.

    Args:
        writers: Where the rows go.
        path: The record, which is made where there is a writer.

    Raises:
        JournalError: The record cannot be written; so does `send`.
    """

    def __init__(self, writers: Sequence[MetricsWriter], path: Path) -> None:
        self._writers = writers
        self._record = MetricsLog(path) if writers else None
        self._sent = {_key(row) for row in self._record.rows} if self._record else set()
        self._waiting: list[Mapping[str, object]] = []

    def add(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Take rows; those that were sent before are not sent again."""
        self._waiting += rows

    def send(self, counts: Callable[[str, int], bool] = lambda phase, step: True) -> None:
        """Give the writers what counts.

        Args:
            counts: Phase and step of a row -> whether it stays, should the run be resumed.
        """
        waiting, self._waiting = self._waiting, []
        for row in waiting:
            key = _key(row)
            if not counts(*key):
                self._waiting.append(row)
            elif self._record is not None and key not in self._sent:
                self._sent.add(key)
                self._record.add({"phase": key[0], "step": key[1]})
                for writer in self._writers:
                    writer.add(row)


def _key(row: Mapping[str, object]) -> tuple[str, int]:
    return str(row["phase"]), int(str(row["step"]))
