"""What happened to an engine's servers: written by a run, read by `polar doctor`."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from polar.cli.findings import Finding
from polar.cli.log_file import log_file
from polar.engines.servers.events import LOGGER, EventName

__all__ = ["check_engine_log", "engine_log"]


class _Line(BaseModel):
    """One event."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    at: str
    address: str
    event: EventName
    detail: str


def engine_log(path: Path) -> AbstractAsyncContextManager[None]:
    """Append what happens to servers to a file of JSON lines."""
    return log_file(path, logger=LOGGER, formatter=_JsonLines())


def check_engine_log(path: Path) -> Iterator[Finding]:
    """Tell for each server of a run how often it was lost, and how it was last seen."""
    if not path.is_file():
        yield Finding("engine servers", "ok", "none was lost in this run")
        return
    lines = list(_lines(path))
    for address in sorted({line.address for line in lines}):
        mine = [line for line in lines if line.address == address]
        yield _finding(address, mine)


def _finding(address: str, lines: list[_Line]) -> Finding:
    counts = Counter(line.event for line in lines)
    last = [line for line in lines if line.event != "moved"][-1:]
    found = f"lost {counts['lost']} times, {counts['moved']} calls moved to another"
    if last:
        found += f"; last {last[0].event} at {last[0].at} ({last[0].detail})"
    away = bool(last) and last[0].event == "lost"
    fix = "See that server's own log; a call waits for it or goes to another." if away else None
    return Finding(f"server {address}", "warn" if away else "ok", found, fix)


def _lines(path: Path) -> Iterator[_Line]:
    """Read the events; a torn last line is left out."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield _Line.model_validate_json(line)
        except ValidationError:
            continue


class _JsonLines(logging.Formatter):
    """Writes a record's parts; records of other code have a message only."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds")
        parts = {name: record.__dict__.get(name) for name in ("address", "event", "detail")}
        return json.dumps({"at": at, **parts, "message": record.getMessage()})
