"""What is particular to the SQLite journal: files, faults, size."""

import asyncio
import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from forwarded_journal import ForwardedJournal

from polar.errors import JournalError
from polar.store import JournalSettings, Scored, ScoreRecord, SqliteJournal, read_journal
from polar.types import Call, CallId, Message, Sampling, Sent, Session, SessionId, TaskId

WRITER = """
import asyncio, resource, sys
from pathlib import Path
import numpy as np
from polar.errors import JournalError
from polar.store import SqliteJournal
from polar.types import Call, CallId, Message, Sampling, Session, SessionId, TaskId

async def main(path, file_limit):
    async with SqliteJournal.open(Path(path)) as journal:
        session = Session(SessionId("s"), TaskId("t"), "g", 0, "k")
        await journal.open_session(session, phase="train", step=0)
        if file_limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        for index in range(100_000):
            call = Call(CallId(str(index)), session.id, 0, index, None,
                np.full(900, index, np.int32), np.zeros(3, np.int32), np.zeros(3, np.float32),
                np.zeros(3, np.int32), (Message("user", str(index)),), (), Sampling(),
                Message("assistant", ""), "stop")
            try:
                await journal.add_call(call)
            except JournalError as error:
                print("refused:", error, flush=True)
                return
            print(index, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def chain(turns: int, *, session_id="s", added=40) -> list[Call]:
    """A session in which every call extends the one before."""
    calls: list[Call] = []
    context = np.arange(500, dtype=np.int32)
    messages = (Message("system", "x" * 2000), Message("user", "go"))
    for index in range(turns):
        sampled = np.full(added, index, dtype=np.int32)
        calls.append(
            Call(
                id=CallId(f"{session_id}-{index}"),
                session_id=SessionId(session_id),
                attempt=0,
                index=index,
                parent_id=calls[-1].id if calls else None,
                prompt_ids=context,
                sampled_ids=sampled,
                logprobs=np.zeros(added, dtype=np.float32),
                weight_versions=np.zeros(added, dtype=np.int32),
                messages=messages,
                tools=(),
                sampling=Sampling(),
                reply=Message("assistant", f"step {index}"),
                finish_reason="stop",
            )
        )
        context = np.concatenate([context, sampled, np.arange(added, dtype=np.int32)])
        messages = (*messages, calls[-1].reply, Message("user", f"result {index}"))
    return calls


def session(session_id="s"):
    return Session(SessionId(session_id), TaskId("t"), "g", 0, "k")


async def store(path, calls, **settings):
    async with SqliteJournal.open(path, settings=JournalSettings(**settings)) as journal:
        for session_id in dict.fromkeys(call.session_id for call in calls):
            await journal.open_session(session(session_id), phase="train", step=0)
        for call in calls:
            await journal.add_call(call)


def row_bytes(path) -> int:
    query = "SELECT sum(length(prompt_tail) + length(messages_tail)) FROM calls"
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchone()[0]
    finally:
        connection.close()


async def test_a_session_costs_what_its_last_call_is_long(tmp_path):
    await store(tmp_path / "short.db", chain(10))
    await store(tmp_path / "long.db", chain(40))
    grown = row_bytes(tmp_path / "long.db") - row_bytes(tmp_path / "short.db")
    assert grown < 30 * (40 * 4 + 400)  # 30 more turns of 40 new ids and two short messages


async def test_deltas_survive_a_cache_that_forgets_at_once(tmp_path):
    calls = chain(30, session_id="a", added=2000) + chain(30, session_id="b", added=2000)
    calls.sort(key=lambda call: call.index)
    await store(tmp_path / "j.db", calls, cache_mb=1)
    with read_journal(tmp_path / "j.db") as journal:
        for name in ("a", "b"):
            expected = [call for call in calls if call.session_id == name]
            found = journal.calls(SessionId(name))
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.prompt_ids.tobytes() == theirs.prompt_ids.tobytes()
                assert ours.messages == theirs.messages


async def test_deltas_survive_a_forwarder_that_forgets_at_once_and_are_as_small(tmp_path):
    calls = chain(30, session_id="a", added=9000) + chain(30, session_id="b", added=9000)
    calls.sort(key=lambda call: call.index)
    async with ForwardedJournal.open(tmp_path / "j.db") as journal:
        for name in ("a", "b"):
            session = Session(SessionId(name), TaskId("t"), "g", 0, f"key-{name}")
            await journal.open_session(session, phase="train", step=0)
        for call in calls:
            await journal.add_call(call)
    await store(tmp_path / "own.db", calls)
    assert row_bytes(tmp_path / "j.db") == row_bytes(tmp_path / "own.db")
    with read_journal(tmp_path / "j.db") as journal:
        for name in ("a", "b"):
            expected = [call for call in calls if call.session_id == name]
            for ours, theirs in zip(journal.calls(SessionId(name)), expected, strict=True):
                assert ours.prompt_ids.tobytes() == theirs.prompt_ids.tobytes()
                assert ours.messages == theirs.messages


@pytest.mark.parametrize("synchronous", ["normal", "full"])
async def test_many_calls_at_once_are_few_commits(tmp_path, synchronous):
    path = tmp_path / "j.db"
    settings = JournalSettings(synchronous=synchronous)
    async with SqliteJournal.open(path, settings=settings) as journal:
        sessions = [session(f"s{number}") for number in range(64)]
        await asyncio.gather(*(journal.open_session(s, phase="p", step=0) for s in sessions))
        calls = [chain(1, session_id=s.id)[0] for s in sessions]
        await asyncio.gather(*map(journal.add_call, calls))
        assert all([len(await journal.calls(s.id)) == 1 for s in sessions])


def test_no_acknowledged_call_is_lost_when_the_process_is_killed(tmp_path):
    path = tmp_path / "j.db"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, path, "0"], stdout=subprocess.PIPE, text=True
    ) as writer:
        for _ in range(30):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged = 30 + len([line for line in writer.stdout if line.endswith("\n")])
    with read_journal(path) as journal:
        found = journal.calls(SessionId("s"))
    assert len(found) >= acknowledged
    assert [call.index for call in found] == list(range(len(found)))
    assert all((call.prompt_ids == call.index).all() for call in found)


def test_a_full_disk_is_an_error_and_keeps_what_was_acknowledged(tmp_path):
    path = tmp_path / "j.db"
    done = subprocess.run(
        [sys.executable, "-c", WRITER, path, "500000"], capture_output=True, text=True, check=False
    )
    *acknowledged, refused = done.stdout.splitlines()
    assert refused.startswith("refused: the journal could not be written")
    assert str(path) in refused
    assert "free space" in refused
    with read_journal(path) as journal:
        assert len(journal.calls(SessionId("s"))) == len(acknowledged) > 5


async def test_calls_after_a_failed_commit_are_not_deltas_on_what_was_undone(tmp_path):
    path = tmp_path / "j.db"
    first, second, third = chain(3)
    async with SqliteJournal.open(path, settings=JournalSettings(busy_timeout_s=0.01)) as journal:
        await journal.open_session(session(), phase="train", step=0)
        await journal.add_call(first)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError, match="locked"):
            await journal.add_call(second)
        other.execute("ROLLBACK")
        other.close()
        await journal.add_call(third)
        found = await journal.calls(SessionId("s"))
    assert [call.id for call in found] == [first.id, third.id]
    assert found[1].prompt_ids.tobytes() == third.prompt_ids.tobytes()


async def test_a_folder_in_the_way_is_an_error_that_names_it(tmp_path):
    with pytest.raises(JournalError, match=str(tmp_path)):
        async with SqliteJournal.open(tmp_path):
            pass


@pytest.mark.parametrize("content", [b"no database at all " * 100, b""])
def test_what_is_no_journal_is_refused_for_reading(tmp_path, content):
    path = tmp_path / "j.db"
    path.write_bytes(content)
    with pytest.raises(JournalError), read_journal(path):
        pass


@pytest.mark.parametrize("kept", [4096, 20_000])
async def test_a_journal_that_was_cut_off_is_told_from_a_full_disk(tmp_path, kept):
    path = tmp_path / "j.db"
    await store(path, chain(20))
    os.truncate(path, kept)
    with pytest.raises(JournalError, match=r"damaged: .*copy"), read_journal(path) as journal:
        journal.calls(SessionId("s"))
    with pytest.raises(JournalError, match=r"damaged: .*copy"):
        async with SqliteJournal.open(path) as journal:
            await journal.calls(SessionId("s"))


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE calls SET messages_tail = '{'",
        "UPDATE calls SET reply = '{}'",
        "UPDATE calls SET sampled = x'00'",
        "UPDATE calls SET base_id = 'no such call'",
        'UPDATE attempts SET outcome = \'{"kind": "completed", "exit_code": 0}\'',
        "UPDATE attempts SET outcome = 'no json'",
    ],
)
async def test_an_entry_that_is_damaged_names_its_session_and_the_file(tmp_path, change):
    path = tmp_path / "j.db"
    await store(path, chain(2))
    connection = sqlite3.connect(path)
    connection.execute(change)
    connection.commit()
    connection.close()
    with (
        read_journal(path) as journal,
        pytest.raises(JournalError, match="'s' is damaged") as raised,
    ):
        (journal.sessions(), journal.calls(SessionId("s")))
    assert raised.value.where == str(path)


async def test_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "j.db"
    await store(path, chain(1))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE schema_version SET version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(JournalError, match="schema version 99"):
        async with SqliteJournal.open(path):
            pass
    with pytest.raises(JournalError, match="schema version 99"), read_journal(path):
        pass


def make_version_2(path):
    """Take out of a journal what version 3 added."""
    connection = sqlite3.connect(path)
    connection.executescript(
        "ALTER TABLE calls DROP COLUMN capture; UPDATE schema_version SET version = 2;"
    )
    connection.close()


def make_version_1(path):
    """Take out of a journal what versions 2 and 3 added."""
    make_version_2(path)
    connection = sqlite3.connect(path)
    connection.executescript(
        "ALTER TABLE calls DROP COLUMN sent; DROP TABLE scores; "
        "UPDATE schema_version SET version = 1;"
    )
    connection.close()


async def test_a_journal_of_version_2_is_read_and_written_and_its_calls_have_tokens(tmp_path):
    path = tmp_path / "j.db"
    first, second, third = chain(3)
    await store(path, [first, second])
    make_version_2(path)
    with read_journal(path) as reader:
        assert [call.capture for call in reader.calls(SessionId("s"))] == ["tokens", "tokens"]
    async with SqliteJournal.open(path) as journal:
        await journal.add_call(dataclasses.replace(third, capture="recorded"))
    with read_journal(path) as reader:
        captures = [call.capture for call in reader.calls(SessionId("s"))]
    assert captures == ["tokens", "tokens", "recorded"]


@pytest.mark.parametrize("capture", ["tokens", "recorded", "text"])
async def test_how_a_calls_tokens_are_known_comes_back(tmp_path, capture):
    (call,) = chain(1)
    await store(tmp_path / "j.db", [dataclasses.replace(call, capture=capture)])
    with read_journal(tmp_path / "j.db") as reader:
        assert [each.capture for each in reader.calls(SessionId("s"))] == [capture]


async def test_a_journal_of_version_1_is_read_as_it_is(tmp_path):
    path = tmp_path / "j.db"
    await store(path, chain(3))
    make_version_1(path)
    before = path.read_bytes()
    with read_journal(path) as reader:
        assert [call.reply.content for call in reader.calls(SessionId("s"))] == [
            "step 0",
            "step 1",
            "step 2",
        ]
        assert reader.scores(SessionId("s")) == {}
        assert reader.unscored(SessionId("s")) == {}
    assert path.read_bytes() == before


async def test_a_journal_of_version_1_is_brought_up_to_date_by_whoever_writes_it(tmp_path):
    path = tmp_path / "j.db"
    first, second, third = chain(3)
    await store(path, [first, second])
    make_version_1(path)
    sent = Sent("gpt", (Message("user", "hi"),), (), ("system_prompt",))
    async with SqliteJournal.open(path) as journal:
        await journal.add_call(dataclasses.replace(third, sent=sent))
        await journal.add_score(ScoreRecord(SessionId("s"), 0, first.id, Scored(0.25)))
    with read_journal(path) as reader:
        assert [call.sent for call in reader.calls(SessionId("s"))] == [None, None, sent]
        assert reader.scores(SessionId("s")) == {first.id: 0.25}


async def test_what_was_sent_is_stored_once_like_what_was_seen(tmp_path):
    def intercepted(turns):
        return [
            dataclasses.replace(
                call,
                sent=Sent("m", (Message("system", "y" * 2000), *call.messages[1:]), (), ("x",)),
            )
            for call in chain(turns)
        ]

    def sent_bytes(path):
        connection = sqlite3.connect(path)
        try:
            return connection.execute("SELECT sum(length(sent)) FROM calls").fetchone()[0]
        finally:
            connection.close()

    await store(tmp_path / "short.db", intercepted(10))
    await store(tmp_path / "long.db", intercepted(40))
    grown = sent_bytes(tmp_path / "long.db") - sent_bytes(tmp_path / "short.db")
    assert grown < 30 * 600  # a message and a reply with all their keys, and no system prompt


async def test_only_the_owner_may_read_the_file(tmp_path):
    await store(tmp_path / "j.db", chain(1))
    assert (tmp_path / "j.db").stat().st_mode & 0o077 == 0


async def test_a_reader_sees_a_journal_while_it_is_written(tmp_path):
    path = tmp_path / "j.db"
    async with SqliteJournal.open(path) as journal:
        await journal.open_session(session(), phase="train", step=0)
        with read_journal(path) as reader:
            assert len(reader.sessions(phase="train")) == 1
            await journal.add_call(chain(1)[0])
            assert len(reader.calls(SessionId("s"))) == 1


async def test_a_session_is_found_by_the_beginning_of_its_id(tmp_path):
    path = tmp_path / "j.db"
    async with SqliteJournal.open(path) as journal:
        for name in ("abc-1", "abc-10", "xyz"):
            await journal.open_session(session(name), phase="train", step=0)
    with read_journal(path) as reader:
        assert reader.find("x").session.id == "xyz"
        assert reader.find("abc-1").session.id == "abc-1"
        with pytest.raises(JournalError, match="abc-1, abc-10"):
            reader.find("abc")
        with pytest.raises(JournalError, match="0 sessions"):
            reader.find("nobody")


def test_a_missing_journal_is_an_error_for_the_reader(tmp_path):
    with pytest.raises(JournalError, match="no journal"), read_journal(tmp_path / "j.db"):
        pass
