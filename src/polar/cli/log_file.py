"""Log records written to a file of the run folder, from a thread of their own."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path

__all__ = ["log_file", "run_log"]


@asynccontextmanager
async def log_file(path: Path, *, logger: str, formatter: logging.Formatter) -> AsyncIterator[None]:
    """Append what a logger is told to a file, which is made at the first record."""
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = _Whole(records)
    file = await asyncio.to_thread(logging.FileHandler, path, delay=True)
    file.setFormatter(formatter)
    listener = QueueListener(records, file)
    target = logging.getLogger(logger)
    target.addHandler(handler)
    listener.start()
    try:
        yield
    finally:
        target.removeHandler(handler)
        await asyncio.to_thread(listener.stop)
        file.close()


def run_log(path: Path) -> AbstractAsyncContextManager[None]:
    """Append what went wrong in a run without ending it, with tracebacks, to a file."""
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    return log_file(path, logger="polar", formatter=formatter)


class _Whole(QueueHandler):
    """Hands records on as they are: formatting is the file's, and done once."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record
