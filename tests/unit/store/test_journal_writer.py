"""What the journal's thread promises to those who wait for it, and to those who do not."""

import asyncio
import sqlite3

import pytest

from polar.errors import JournalError
from polar.store.writer import Writer


@pytest.fixture
async def writer(tmp_path):
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(tmp_path / "db", isolation_level=None)
        connection.execute("CREATE TABLE IF NOT EXISTS t (x INTEGER UNIQUE)")
        return connection

    opened = Writer(connect, explain=lambda error: JournalError(str(error)))
    yield opened
    await opened.aclose()


def insert(value):
    return lambda connection: connection.execute("INSERT INTO t VALUES (?)", (value,)).rowcount


def rows(connection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT x FROM t ORDER BY x")]


async def test_what_nobody_waits_for_is_done_before_the_next_job(writer):
    done = []
    await writer.run(insert(1), afterwards=lambda: done.append(1))
    assert await writer.run(lambda connection: list(done)) == [1]


async def test_nothing_follows_a_job_that_failed_and_the_next_one_succeeds(writer):
    followed = []
    await writer.run(insert(1))
    with pytest.raises(JournalError, match="UNIQUE"):
        await writer.run(insert(1), afterwards=lambda: followed.append(1))
    await writer.run(insert(2))
    assert await writer.run(rows) == [1, 2]
    assert followed == []


async def test_a_job_that_fails_halfway_leaves_nothing_behind(writer):
    def halfway(connection):
        connection.execute("INSERT INTO t VALUES (7)")
        raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        await writer.run(halfway)
    assert await writer.run(rows) == []


async def test_an_error_in_what_follows_a_job_is_logged_and_stops_nothing(writer, caplog):
    def follow():
        raise ValueError("too late")

    assert await writer.run(insert(1), afterwards=follow) == 1
    assert await writer.run(rows) == [1]
    assert "too late" in caplog.text


async def test_a_job_of_one_statement_that_fails_takes_none_of_its_commit_with_it(writer):
    jobs = (writer.run(insert(value), one_statement=True) for value in (1, 2, 2, 3))
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(result) for result in results] == [int, int, JournalError, int]
    assert await writer.run(rows) == [1, 2, 3]
