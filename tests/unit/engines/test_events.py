"""Events that have arrived together are taken together, and nothing of them is lost."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.engines.servers import Event, read_events
from polar.errors import ServerFailed

LAST = b"9"
BROKEN = b"!"


def read(line):
    """Read lines that are a token's id each; a blank one says nothing."""
    if line == BROKEN:
        raise ServerFailed("the server broke off")
    if not line.strip():
        return None
    return Event((int(line),), (-float(line),), "stop" if line == LAST else None, (), 7)


async def told(*batches):
    """Read batches of lines; give the events and the error that they end with."""

    async def arriving():
        for batch in batches:
            yield batch

    events, error = [], None
    try:
        async for event in read_events(arriving(), read):
            events.append(event)
    except ServerFailed as failure:
        error = failure
    return events, error


async def test_lines_that_arrived_together_are_one_event():
    events, _ = await told([b"1", b" ", b"2"], [b"3", LAST, b"[DONE]"])
    assert events == [
        Event((1, 2), (-1.0, -2.0), None, (), 7),
        Event((3, 9), (-3.0, -9.0), "stop", (), 7),
    ]


async def test_what_came_before_a_failure_is_told_before_it():
    events, error = await told([b"1", b"2", BROKEN, b"3"])
    assert [event.token_ids for event in events] == [(1, 2)]
    assert error is not None


@pytest.mark.parametrize("blank", [[b" "], []])
async def test_lines_that_say_nothing_are_no_event(blank):
    assert await told(blank, [b"1"]) == ([Event((1,), (-1.0,), None, (), 7)], None)


@given(st.lists(st.lists(st.integers(0, 8), max_size=4), max_size=6))
async def test_the_tokens_are_the_same_however_they_arrive(batches):
    events, _ = await told(*([str(token).encode() for token in batch] for batch in batches))
    assert [token for event in events for token in event.token_ids] == list(
        chain.from_iterable(batches)
    )
    assert len(events) == sum(map(bool, batches))
