"""One thread that owns the connection and commits what waits together."""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from polar.errors import JournalError, PolarError

__all__ = ["Writer"]

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], Any]

_log = logging.getLogger("polar.store")

_MOST_JOBS_A_COMMIT = 256


@dataclass(frozen=True, slots=True)
class _Waiting:
    job: Job
    done: asyncio.Future[Any]
    afterwards: Callable[[], None] | None
    one_statement: bool


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class Writer:
    """Runs jobs on one SQLite connection, in the order they came, in as few commits as they allow.

    A job is acknowledged after the commit that holds it. A job that raises is undone alone; when
    the database itself fails, the whole commit is undone and each of its jobs fails.

    Args:
        connect: Opens the connection; called in the writer's thread.
        explain: Turns an error of the database into one that a user can act on.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        *,
        explain: Callable[[sqlite3.Error], JournalError],
    ) -> None:
        self._connect = connect
        self._explain = explain
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._closed: JournalError | None = None
        self._thread = threading.Thread(target=self._main, name="journal", daemon=True)
        self._thread.start()

    async def run(
        self,
        job: Callable[[sqlite3.Connection], T],
        *,
        afterwards: Callable[[], None] | None = None,
        one_statement: bool = False,
    ) -> T:
        """Run a job and return its result once it is durable.

        Args:
            job: What to do.
            afterwards: What nobody waits for: done in the writer's thread when the job is durable
                and acknowledged, before any later commit.
            one_statement: The job changes the database by one statement at most, which SQLite
                undoes by itself when it fails. Every statement lets go of the interpreter and has
                to wait for it again, for up to 5 ms where the event loop is busy.

        Raises:
            JournalError: The database failed, or the writer is closed.
        """
        if self._closed is not None:
            raise self._closed
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(_Waiting(job, done, afterwards, one_statement))
        return await done

    async def aclose(self) -> None:
        """Finish what waits, close the connection and end the thread."""
        if self._closed is None:
            self._closed = JournalError("the journal is closed")
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _main(self) -> None:
        try:
            connection = self._connect()
        except PolarError as error:
            self._refuse_all(error)
            return
        with_end = False
        while not with_end:
            batch, with_end = self._take()
            if batch:
                results = self._commit(connection, batch)
                _acknowledge(batch, results)
                _follow_up(batch, results)
        connection.close()

    def _take(self) -> tuple[list[_Waiting], bool]:
        """Wait for a job and take all that wait with it; say whether the end was among them."""
        item = self._queue.get()
        batch: list[_Waiting] = []
        while item is not None:
            batch.append(item)
            if len(batch) == _MOST_JOBS_A_COMMIT:
                return batch, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _commit(self, connection: sqlite3.Connection, batch: list[_Waiting]) -> list[Any]:
        try:
            connection.execute("BEGIN IMMEDIATE")
            if len(batch) == 1:
                results = [_run_only(connection, batch[0].job)]
            else:
                results = [_run_alone(connection, waiting) for waiting in batch]
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            return [_Failure(self._explain(error)) for _ in batch]
        return results

    def _refuse_all(self, error: PolarError) -> None:
        """Fail every job, because the connection could not be opened."""
        while (item := self._queue.get()) is not None:
            _acknowledge([item], [_Failure(error)])


def _run_alone(connection: sqlite3.Connection, waiting: _Waiting) -> Any:
    """Run one of several jobs, so that what it did can be undone by itself."""
    if waiting.one_statement:
        return _result_of(connection, waiting.job)
    connection.execute("SAVEPOINT job")
    result = _result_of(connection, waiting.job)
    if isinstance(result, _Failure):
        connection.execute("ROLLBACK TO job")
    connection.execute("RELEASE job")
    return result


def _run_only(connection: sqlite3.Connection, job: Job) -> Any:
    """Run the only job of a commit."""
    result = _result_of(connection, job)
    if isinstance(result, _Failure):
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")  # for the commit that follows
    return result


def _result_of(connection: sqlite3.Connection, job: Job) -> Any:
    try:
        return job(connection)
    except sqlite3.IntegrityError as error:
        return _Failure(JournalError(f"the journal refused an entry: {error}"))
    except sqlite3.Error:
        raise
    except Exception as error:  # whoever waits for the job raises it
        return _Failure(error)


def _acknowledge(batch: list[_Waiting], results: list[Any]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for waiting, result in zip(batch, results, strict=True):
        by_loop.setdefault(waiting.done.get_loop(), []).append((waiting.done, result))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, settled)
        except RuntimeError:  # the loop ended while its job was being committed
            continue


def _follow_up(batch: list[_Waiting], results: list[Any]) -> None:
    for waiting, result in zip(batch, results, strict=True):
        if waiting.afterwards is None or isinstance(result, _Failure):
            continue
        try:
            waiting.afterwards()
        except Exception:  # the thread must live on, and the job's result is out
            _log.exception("after a job of the journal")


def _settle(settled: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for done, result in settled:
        if done.done():
            continue
        if isinstance(result, _Failure):
            done.set_exception(result.error)
        else:
            done.set_result(result)
