"""What a server's connection does with answers that end, break off, fall silent or go on."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from polar.engines.servers import Connection, ServerKind
from polar.engines.settings import VllmSettings
from polar.errors import EngineError, ServerLost

KIND = ServerKind(name="a test", missing="Look.", forbidden="Open it.")


@asynccontextmanager
async def connected(answer, **settings):
    """Serve every path by a handler, and connect to it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        connection = Connection(str(server.make_url("")), VllmSettings(**settings), KIND)
        try:
            yield connection
        finally:
            await connection.aclose()


async def stream_of(request, *parts):
    response = web.StreamResponse()
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    return response


async def falls_silent(request):
    response = await stream_of(request, b"one\n")
    await asyncio.sleep(5)
    return response


async def all_lines(connection):
    async with aclosing(connection.lines("/", {})) as lines:
        return [line async for batch in lines for line in batch]


async def test_a_connection_whose_answer_has_ended_carries_the_next_request():
    peers = set()

    async def answer(request):
        peers.add(request.transport.get_extra_info("peername"))
        return await stream_of(request, b"one\n", b"two\n")

    async with connected(answer) as connection:
        for _ in range(3):
            assert await all_lines(connection) == [b"one", b"two"]
    assert len(peers) == 1


async def test_leaving_an_answer_before_its_end_hangs_up():
    gone = asyncio.Event()

    async def answer(request):
        try:
            response = await stream_of(request, b"one\n")
            while True:
                await asyncio.sleep(0.01)
                await response.write(b"more\n")
        except (ConnectionError, asyncio.CancelledError):
            gone.set()
            raise

    async with connected(answer) as connection:
        async with aclosing(connection.lines("/", {})) as lines:
            assert await anext(lines) == [b"one"]
        async with asyncio.timeout(5):
            await gone.wait()


async def test_a_server_that_breaks_off_is_lost_and_no_end():
    async def answer(request):
        response = await stream_of(request, b"one\n")
        request.transport.abort()
        return response

    async with connected(answer) as connection:
        with pytest.raises(ServerLost, match="does not answer"):
            await all_lines(connection)


async def test_a_silent_server_is_lost_after_its_time():
    async with connected(falls_silent, token_timeout_s=0.1) as connection:
        with pytest.raises(ServerLost, match="Timeout"):
            await all_lines(connection)


@asynccontextmanager
async def reading_what_fell_silent():
    """Wait for the second line of a server that sends only one."""
    async with connected(falls_silent) as connection, aclosing(connection.lines("/", {})) as lines:
        await anext(lines)
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0.05)
        yield connection, waiting


async def test_dropping_streams_wakes_their_readers():
    async with reading_what_fell_silent() as (connection, waiting):
        await connection.drop_streams()
        with pytest.raises(ServerLost):
            async with asyncio.timeout(5):
                await waiting


async def test_closing_tells_readers_that_the_engine_was_closed():
    async with reading_what_fell_silent() as (connection, waiting):
        await connection.aclose()
        with pytest.raises(EngineError, match="the engine was closed"):
            async with asyncio.timeout(5):
                await waiting
        with pytest.raises(EngineError, match="the engine was closed"):
            await connection.get("/")


@asynccontextmanager
async def asking_a_frozen_server():
    """Ask for a stream and for a whole answer where not even the answer's head ever comes."""
    arrived = asyncio.Queue()

    async def answer(request):
        await arrived.put(request)
        await asyncio.sleep(30)

    async with connected(answer) as connection:
        asking = (
            asyncio.ensure_future(all_lines(connection)),
            asyncio.ensure_future(connection.sampled("/", {})),
        )
        async with asyncio.timeout(5):
            for _ in asking:
                await arrived.get()
        yield connection, asking


async def errors_of(asking):
    async with asyncio.timeout(5):
        return await asyncio.gather(*asking, return_exceptions=True)


async def test_dropping_streams_gives_up_requests_whose_answer_has_not_begun():
    async with asking_a_frozen_server() as (connection, asking):
        await connection.drop_streams()
        assert [type(error) for error in await errors_of(asking)] == [ServerLost, ServerLost]


async def test_closing_gives_up_requests_whose_answer_has_not_begun():
    async with asking_a_frozen_server() as (connection, asking):
        await connection.aclose()
        errors = await errors_of(asking)
    assert [type(error) for error in errors] == [EngineError, EngineError]
    assert all("the engine was closed" in str(error) for error in errors)


async def test_a_cancelled_caller_is_cancelled_before_its_answer_has_begun():
    async with asking_a_frozen_server() as (_, asking):
        for task in asking:
            task.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait(asking)
        assert [task.cancelled() for task in asking] == [True, True]


async def test_dropping_streams_as_an_answer_begins_gives_it_up():
    async def answer(request):
        response = await stream_of(request)
        await asyncio.sleep(30)
        return response

    async with connected(answer) as connection:
        asking = asyncio.ensure_future(all_lines(connection))
        async with asyncio.timeout(5):
            while not connection._streams:  # noqa: ASYNC110 - no event tells of the answer's head
                await asyncio.sleep(0)
        await connection.drop_streams()
        assert [type(error) for error in await errors_of([asking])] == [ServerLost]


async def test_a_whole_answer_is_read_and_its_connection_used_again():
    peers = set()

    async def answer(request):
        peers.add(request.transport.get_extra_info("peername"))
        return web.json_response(await request.json())

    async with connected(answer) as connection:
        for n in range(3):
            assert await connection.sampled("/", {"n": n}) == {"n": n}
    assert len(peers) == 1


async def test_a_line_may_hold_a_whole_long_reply():
    line = b"x" * 3_000_000

    async def answer(request):
        return await stream_of(request, line[:1_000_000], line[1_000_000:] + b"\n", b"end\n")

    async with connected(answer) as connection:
        assert await all_lines(connection) == [line, b"end"]


async def test_lines_that_have_arrived_come_together():
    async def answer(request):
        return await stream_of(request, b"one\ntwo\n\nth", b"ree\n")

    async with connected(answer) as connection, aclosing(connection.lines("/", {})) as lines:
        assert (await anext(lines))[:2] == [b"one", b"two"]
        assert b"three" in await anext(lines, [b"three"])


async def test_the_key_and_the_body_arrive_as_they_are():
    seen = {}

    async def answer(request):
        seen.update(key=request.headers["authorization"], body=await request.json())
        return web.json_response({"ok": True})

    async with connected(answer, api_key="k") as connection:
        assert await connection.post_json("/", {"ids": [1, 2]}) == {"ok": True}
    assert seen == {"key": "Bearer k", "body": {"ids": [1, 2]}}
