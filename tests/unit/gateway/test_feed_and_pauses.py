"""Readers of a growing reply, and the gate before new calls."""

import asyncio

import pytest

from polar.errors import EngineError
from polar.gateway.feed import Feed
from polar.gateway.pauses import Pauses
from polar.types import Message, Reply, TextDelta, Usage

REPLY = Reply(Message("assistant", "ab"), "stop", Usage(1, 2))
A, B = TextDelta("a"), TextDelta("b")


def later(seconds):
    return asyncio.get_running_loop().time() + seconds


async def test_a_late_reader_reads_from_the_start():
    feed = Feed(lambda: None)
    feed.put([A])
    feed.put([B])
    feed.finish(REPLY)
    with feed.reader() as reader:
        assert reader.ending is None
        assert await reader.more(until=later(1)) == [TextDelta("ab")]
        assert reader.ending is REPLY


async def test_a_waiting_reader_is_woken_by_news_and_by_the_end():
    feed = Feed(lambda: None)
    with feed.reader() as reader, feed.reader() as other:
        waiting = asyncio.create_task(reader.more(until=later(30)))
        whole = asyncio.create_task(other.whole())
        await asyncio.sleep(0)
        feed.put([A])
        assert await waiting == [A]
        waiting = asyncio.create_task(reader.more(until=later(30)))
        await asyncio.sleep(0)
        feed.finish(REPLY)
        assert await waiting == []
        assert reader.ending is await whole is REPLY


async def test_nothing_new_in_time_is_nothing():
    feed = Feed(lambda: None)
    with feed.reader() as reader:
        assert await reader.more(until=later(0.001)) == []
        assert reader.ending is None


async def test_a_reader_waits_for_its_time_after_news_came_before_it():
    feed = Feed(lambda: None)
    with feed.reader() as reader:
        waiting = asyncio.create_task(reader.more(until=later(0.01)))
        await asyncio.sleep(0)
        feed.put([A])
        assert await waiting == [A]
        until = later(0.05)
        assert await reader.more(until=until) == []
        assert later(0) >= until


async def test_a_reader_that_left_sets_off_no_alarm():
    feed = Feed(lambda: None)
    with feed.reader() as reader:
        waiting = asyncio.create_task(reader.more(until=later(30)))
        await asyncio.sleep(0)
        feed.finish(REPLY)
        await waiting
    assert reader._alarm.cancelled()


async def test_the_first_ending_stays():
    feed = Feed(lambda: None)
    feed.finish(REPLY)
    feed.finish(EngineError("late"))
    assert feed.ending is REPLY


async def test_only_the_last_reader_to_leave_before_the_end_deserts_a_call():
    deserted = []
    feed = Feed(lambda: deserted.append(True))
    with feed.reader():
        with feed.reader():
            pass
        assert not deserted
    assert deserted == [True]
    with feed.reader():
        feed.finish(REPLY)
    assert deserted == [True]


async def test_pauses_add_up_and_a_repeated_one_counts_once():
    now = [0.0]
    pauses = Pauses(lambda: now[0])
    pauses.end()
    pauses.begin()
    now[0] = 2.0
    pauses.begin()
    now[0] = 3.0
    assert (pauses.paused, pauses.total_s()) == (True, 3.0)
    pauses.end()
    now[0] = 10.0
    assert (pauses.paused, pauses.total_s()) == (False, 3.0)
    pauses.begin()
    now[0] = 11.0
    assert pauses.total_s() == 4.0


async def test_the_gate_opens_for_those_who_wait_and_times_out_for_those_who_wait_too_long():
    pauses = Pauses(lambda: 0.0)
    await pauses.wait_open(timeout_s=0)
    pauses.begin()
    with pytest.raises(TimeoutError):
        await pauses.wait_open(timeout_s=0.001)
    waiting = asyncio.create_task(pauses.wait_open(timeout_s=30))
    await asyncio.sleep(0)
    pauses.end()
    await waiting
