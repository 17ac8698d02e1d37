"""What a connection writes at once, and that nothing of it is lost."""

import asyncio

import pytest

from polar.gateway.connections import _WholeStarts

HEAD, BODY = b"HTTP/1.1 200 OK\r\n\r\n", b"{}"


class Written:
    """A transport that keeps what each system call would send."""

    def __init__(self):
        self.calls = []
        self.closed = False

    def write(self, data):
        self.calls.append(data)

    def writelines(self, parts):
        self.calls.append(b"".join(parts))

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True


@pytest.fixture
async def transports():
    written = Written()
    return _WholeStarts(written, asyncio.get_running_loop()), written


async def test_a_head_goes_out_with_what_follows_it_at_once(transports):
    transport, written = transports
    for data in (HEAD, BODY, BODY, HEAD, BODY):
        transport.write(data)
    await asyncio.sleep(0)
    assert written.calls == [HEAD + BODY, BODY, HEAD + BODY]


async def test_a_head_that_nothing_follows_goes_out_by_itself(transports):
    transport, written = transports
    transport.write(HEAD)
    await asyncio.sleep(0)
    transport.write(BODY)
    assert written.calls == [HEAD, BODY]


async def test_a_head_is_written_before_the_connection_is_closed(transports):
    transport, written = transports
    transport.write(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert (written.calls, written.closed) == ([HEAD], True)
