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


async def all_lines(connection):
    async with aclosing(connection.lines("/", {})) as lines:
        return [line async for line in lines]


async def test_a_connection_whose_answer_has_ended_carries_the_next_request():
    peers = set()

    async def answer(request):
        peers.add(request.transport.get_extra_info("peername"))
        return await stream_of(request, b"one\n", b"two\n")

    async with connected(answer) as connection:
        for _ in range(3):
            assert await all_lines(connection) == [b"one\n", b"two\n"]
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
            assert await anext(lines) == b"one\n"
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
    async def answer(request):
        response = await stream_of(request, b"one\n")
        await asyncio.sleep(5)
        return response

    async with connected(answer, token_timeout_s=0.1) as connection:
        with pytest.raises(ServerLost, match="Timeout"):
            await all_lines(connection)


async def test_dropping_streams_wakes_their_readers():
    async def answer(request):
        response = await stream_of(request, b"one\n")
        await asyncio.sleep(5)
        return response

    async with connected(answer) as connection, aclosing(connection.lines("/", {})) as lines:
        await anext(lines)
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0.05)
        await connection.drop_streams()
        with pytest.raises(ServerLost):
            async with asyncio.timeout(5):
                await waiting


async def test_closing_tells_readers_that_the_engine_was_closed():
    async def answer(request):
        response = await stream_of(request, b"one\n")
        await asyncio.sleep(5)
        return response

    async with connected(answer) as connection, aclosing(connection.lines("/", {})) as lines:
        await anext(lines)
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0.05)
        await connection.aclose()
        with pytest.raises(EngineError, match="the engine was closed"):
            async with asyncio.timeout(5):
                await waiting
        with pytest.raises(EngineError, match="the engine was closed"):
            await connection.get("/")


async def test_a_line_may_hold_a_whole_long_reply():
    line = b"x" * 3_000_000 + b"\n"

    async def answer(request):
        return await stream_of(request, line[:1_000_000], line[1_000_000:], b"end\n")

    async with connected(answer) as connection:
        assert await all_lines(connection) == [line, b"end\n"]


async def test_the_key_and_the_body_arrive_as_they_are():
    seen = {}

    async def answer(request):
        seen.update(key=request.headers["authorization"], body=await request.json())
        return web.json_response({"ok": True})

    async with connected(answer, api_key="k") as connection:
        assert await connection.post_json("/", {"ids": [1, 2]}) == {"ok": True}
    assert seen == {"key": "Bearer k", "body": {"ids": [1, 2]}}
