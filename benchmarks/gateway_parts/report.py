"""Figures as lines of JSON, and as tables in Markdown."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Cell:
    """What a load is."""

    openings: str
    prompt_tokens: int
    clients: int


@dataclass
class Record:
    """All figures of a run, in the order they were made."""

    path: Path | None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, what: str, **figures: Any) -> None:
        row = {"what": what, **{key: _rounded(value) for key, value in figures.items()}}
        self.rows.append(row)
        line = json.dumps(row)
        print(line, file=sys.stderr, flush=True)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(line + "\n")

    def median(self, key: str, **wanted: Any) -> float | None:
        """Median over the rounds of the rows that are wanted."""
        found = [
            row[key]
            for row in self.rows
            if row.get(key) is not None and all(row.get(k) == v for k, v in wanted.items())
        ]
        return float(np.median(found)) if found else None


def latency_table(record: Record, names: Sequence[str], cells: Sequence[Cell]) -> str:
    lines = [
        "| openings | prompt tokens | clients | server | p50 ms | p99 ms | added p50 ms "
        "| to Polar's | first turn ms | CPU ms a call | to Polar's | requests/s | Polar's to it |",
        "|---" * 13 + "|",
    ]
    for cell in cells:
        for name in names:
            lines.append(_latency_line(record, {"what": "latency", **asdict(cell)}, name))
    return "\n".join(lines)


def plain_table(record: Record, what: str, columns: Sequence[str]) -> str:
    rows = [row for row in record.rows if row["what"] == what]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_text(row.get(name)) for name in columns) + " |" for row in rows]
    return "\n".join(lines)


def _latency_line(record: Record, cell: dict[str, Any], name: str) -> str:
    def of(key: str, target: str = name) -> float | None:
        return record.median(key, target=target, **cell)

    added = _added(of("p50_ms"), of("p50_ms", "direct"))
    ours = _added(of("p50_ms", "polar"), of("p50_ms", "direct"))
    rate = _ratio(of("requests_s", "polar"), of("requests_s"))
    values = [of("p50_ms"), of("p99_ms"), added, _ratio(added, ours), of("first_ms")]
    values += [of("cpu_ms"), _ratio(of("cpu_ms"), of("cpu_ms", "polar")), of("requests_s"), rate]
    shown = [cell["openings"], cell["prompt_tokens"], cell["clients"], name, *values]
    return "| " + " | ".join(_text(value) for value in shown) + " |"


def _added(through: float | None, direct: float | None) -> float | None:
    return None if through is None or direct is None else through - direct


def _ratio(value: float | None, other: float | None) -> float | None:
    return None if value is None or not other else value / other


def _rounded(value: Any) -> Any:
    return round(float(value), 4) if isinstance(value, float | np.floating) else value


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
