"""What a run leaves behind: metrics as JSON lines, a summary, a curve."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from polar.errors import JournalError

__all__ = ["MetricsLog", "draw_curve", "terminal_curve", "write_json"]


class MetricsLog:
    """Appends rows to a JSON-lines file; a torn last line of a killed process is cut off.

    Raises:
        JournalError: The file cannot be written, or a line before the last is no row; so do the
            methods.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = _whole_rows(path)
        self._rewrite()

    @property
    def rows(self) -> Sequence[Mapping[str, object]]:
        """All rows, oldest first."""
        return self._rows

    def retain(self, counts: Callable[[str, int], bool]) -> None:
        """Forget the rows that a resumed run makes again.

        Args:
            counts: Phase and step of a row -> whether it stays.
        """
        self._rows = [row for row in self._rows if counts(str(row["phase"]), int(str(row["step"])))]
        self._rewrite()

    def add(self, row: Mapping[str, object]) -> None:
        """Append one row and flush it to the file system."""
        with _explained(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self._rows.append(dict(row))

    def _rewrite(self) -> None:
        _replace(self._path, "".join(json.dumps(row) + "\n" for row in self._rows))


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically.

    Raises:
        JournalError: It cannot be written.
    """
    _replace(path, json.dumps(value, indent=2) + "\n")


def draw_curve(path: Path, rows: Sequence[Mapping[str, object]], *, title: str) -> None:
    """Draw pass rate a step and all held-out evaluations with their intervals as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    steps, rates = training_curve(rows)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(steps, rates, color="#9bbcd6", marker="o", markersize=3, label="training, each step")
    axes.plot(
        steps, smoothed(rates), color="#1f5f8b", linewidth=2, label="training, mean of 5 steps"
    )
    if found := heldout_curve(rows):
        at, values, below, above = zip(*found, strict=True)
        axes.errorbar(
            at,
            values,
            yerr=(below, above),
            fmt="s",
            color="#c8501e",
            capsize=5,
            label="held-out pass@1, 95% interval",
        )
    axes.set(xlabel="step", ylabel="pass rate", ylim=(0, 1), title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=130)


def heldout_curve(
    rows: Sequence[Mapping[str, object]],
) -> list[tuple[int, float, float, float]]:
    """Read the evaluations: step, pass@1, and how far its interval goes below and above."""
    found = []
    for row in rows:
        if "pass_at_1" in row:
            value, low, high = (float(str(row[key])) for key in ("pass_at_1", "low", "high"))
            found.append((int(str(row["step"])), value, value - low, high - value))
    return found


def terminal_curve(rows: Sequence[Mapping[str, object]], *, width: int) -> str:
    """Draw the pass rate a step for the terminal; empty with fewer than two steps."""
    import plotext

    steps, rates = training_curve(rows)
    if len(steps) < 2:
        return ""
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(min(width, 90), 14)
    plotext.ylim(0, 1)
    plotext.plot(steps, rates, marker="dot", label="pass rate")
    plotext.plot(steps, smoothed(rates), marker="braille", label="mean of 5")
    plotext.xlabel("step")
    return str(plotext.uncolorize(plotext.build()))


def training_curve(rows: Sequence[Mapping[str, object]]) -> tuple[list[int], list[float]]:
    """Read steps and pass rates from metrics rows."""
    trained = [row for row in rows if row["phase"] == "train"]
    return [int(str(row["step"])) for row in trained], [
        float(str(row["pass_rate"])) for row in trained
    ]


def smoothed(values: Sequence[float], window: int = 5) -> list[float]:
    """Average each value with up to `window - 1` before it."""
    return [
        sum(values[max(0, end - window) : end]) / min(window, end)
        for end in range(1, len(values) + 1)
    ]


def _whole_rows(path: Path) -> list[dict[str, object]]:
    """Read the rows of a file; only the last line may be torn.

    Raises:
        JournalError: Another line is no row: rewriting the file would lose it.
    """
    if not path.exists():
        return []
    with _explained(path):
        lines = path.read_bytes().splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if row is not None:
            rows.append(row)
        elif number < len(lines):
            raise JournalError(
                "a line of the metrics is damaged",
                where=f"{path}:{number}",
                fix="Correct or remove the line, then resume.",
            )
    return rows


def _row(line: bytes) -> dict[str, object] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(row, dict) and isinstance(row.get("phase"), str)
    return row if whole and isinstance(row.get("step"), int) else None


def _replace(path: Path, text: str) -> None:
    with _explained(path):
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JournalError(
            f"a record of the run cannot be written: {error}",
            where=str(path),
            fix="Check free space and permissions there, then resume.",
        ) from error
