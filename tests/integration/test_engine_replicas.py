"""Several servers behind one engine, as processes that are killed, frozen and started anew."""

import asyncio
import logging
from contextlib import aclosing, asynccontextmanager

import pytest
from replica_process import replicas, weights
from vllm_replica import END, START, logprob, reply_to

from polar.engines import SampleRequest
from polar.engines.settings import VllmSettings
from polar.engines.vllm import VllmEngine
from polar.errors import EngineError, ModelMissing
from polar.types import Sampling

FAST = {
    "check_interval_s": 0.1,
    "check_timeout_s": 1.0,
    "failed_checks": 2,
    "connect_timeout_s": 2.0,
    "lost_timeout_s": 20.0,
}
PROMPT = (*b"user\nAnna asks", END, START, *b"assistant\n")
REPLY = reply_to(PROMPT)


@asynccontextmanager
async def engine_on(servers, **settings):
    engine = VllmEngine(VllmSettings(urls=tuple(each.url for each in servers), **FAST | settings))
    try:
        await engine.probe()
        yield engine
    finally:
        await engine.aclose()


def request(affinity="session", **sampling) -> SampleRequest:
    return SampleRequest(PROMPT, Sampling(stop_token_ids=(END,), **sampling), affinity=affinity)


async def whole(engine, asked):
    async with aclosing(engine.sample(asked)) as chunks:
        return [chunk async for chunk in chunks]


def ids(chunks):
    return [token for chunk in chunks for token in chunk.token_ids]


def says_which_weights(chunks) -> bool:
    """Whether every token's stamp is of the weights that its logprob is of."""
    return all(
        said == pytest.approx(logprob(token, chunk.weight_version), rel=1e-6)
        for chunk in chunks
        for token, said in zip(chunk.token_ids, chunk.logprobs, strict=True)
    )


def serving(engine) -> int:
    return sum(status.serving for status in engine.status())


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.02)


async def server_of(engine, servers, asked):
    """Find the server that samples for a request, while it does."""
    stream = engine.sample(asked)
    first = await anext(stream)
    (busy,) = (status.address for status in engine.status() if status.streams)
    return next(server for server in servers if server.url == busy), stream, first


async def rest(stream, first):
    async with aclosing(stream):
        return [first, *[chunk async for chunk in stream]]


async def test_a_call_whose_server_is_killed_goes_on_at_another_after_the_same_tokens():
    async with replicas(3, chunk_s=0.02) as servers, engine_on(servers) as engine:
        server, stream, first = await server_of(engine, servers, request())
        await server.kill()
        chunks = await rest(stream, first)
        assert ids(chunks) == REPLY
        assert chunks[-1].finish_reason == "stop"
        assert says_which_weights(chunks)
        (lost,) = (status for status in engine.status() if not status.serving)
        assert (lost.address, lost.moved, lost.losses) == (server.url, 1, 1)


async def test_a_call_that_no_server_has_begun_goes_to_one_that_serves():
    async with replicas(2) as servers, engine_on(servers) as engine:
        await servers[0].kill()
        replies = [await whole(engine, request(f"session {n}")) for n in range(12)]
        assert all(ids(chunks) == REPLY for chunks in replies)


async def test_the_limit_of_tokens_holds_across_a_move():
    async with replicas(2, chunk_s=0.02) as servers, engine_on(servers) as engine:
        server, stream, first = await server_of(engine, servers, request(max_tokens=11))
        await server.kill()
        chunks = await rest(stream, first)
        assert ids(chunks) == REPLY[:11]
        assert chunks[-1].finish_reason == "length"


async def test_a_frozen_server_loses_its_running_calls_to_another():
    async with (
        replicas(2, chunk_s=0.05) as servers,
        engine_on(servers, check_timeout_s=0.3) as engine,
    ):
        server, stream, first = await server_of(engine, servers, request())
        server.freeze()
        chunks = await rest(stream, first)
        assert ids(chunks) == REPLY


async def test_a_call_waits_for_the_only_server_to_come_back():
    async with replicas(1, chunk_s=0.02) as servers, engine_on(servers) as engine:
        _, stream, first = await server_of(engine, servers, request())
        await servers[0].kill()
        follows = asyncio.create_task(rest(stream, first))
        await until(lambda: not serving(engine))
        await servers[0].start()
        assert ids(await follows) == REPLY


async def test_a_call_fails_when_no_server_comes_back_in_time():
    async with replicas(1) as servers, engine_on(servers, lost_timeout_s=0.3) as engine:
        await servers[0].kill()
        with pytest.raises(EngineError, match="no server of the engine came back"):
            await whole(engine, request())


async def test_a_server_that_was_started_anew_serves_again_only_with_the_present_weights(tmp_path):
    async with replicas(2) as servers, engine_on(servers) as engine:
        await engine.pause()
        await engine.load_weights(3, weights(tmp_path, 3))
        await engine.resume()
        await servers[0].kill()
        await until(lambda: serving(engine) == 1)
        await servers[0].start()
        await until(lambda: serving(engine) == 2)
        replies = [await whole(engine, request(f"session {n}")) for n in range(12)]
        assert {chunk.weight_version for chunks in replies for chunk in chunks} == {3}
        assert all(says_which_weights(chunks) for chunks in replies)
        assert [status.weight_version for status in engine.status()] == [3, 3]


async def test_a_server_that_is_away_during_an_update_gets_the_weights_when_it_returns(tmp_path):
    async with replicas(2) as servers, engine_on(servers) as engine:
        await servers[0].kill()
        await until(lambda: serving(engine) == 1)
        await engine.pause()
        await engine.load_weights(1, weights(tmp_path, 1))
        await servers[0].start()
        await asyncio.sleep(0.3)
        assert serving(engine) == 1, "weights are given while they may be rewritten"
        await engine.resume()
        await until(lambda: serving(engine) == 2)
        assert [status.weight_version for status in engine.status()] == [1, 1]


async def test_a_server_that_fails_an_update_is_not_used_until_it_has_the_weights(tmp_path):
    async with replicas(2) as servers, engine_on(servers) as engine:
        await engine.pause()
        await servers[1].kill()
        await engine.load_weights(2, weights(tmp_path, 2))
        await engine.resume()
        assert serving(engine) == 1
        await servers[1].start()
        await until(lambda: serving(engine) == 2)
        replies = [await whole(engine, request(f"session {n}")) for n in range(12)]
        assert all(says_which_weights(chunks) for chunks in replies)


async def test_a_reply_of_weights_that_nobody_gave_fails_or_moves(tmp_path):
    # Checks are rare here, so that only the reply itself can tell that the server is a new one.
    async with (
        replicas(2, chunk_s=0.01) as servers,
        engine_on(servers, check_interval_s=60.0) as engine,
    ):
        await engine.pause()
        await engine.load_weights(5, weights(tmp_path, 5))
        await engine.resume()
        for server in servers:
            await server.kill()
            await server.start()
        with pytest.raises(EngineError, match="behind the engine's back"):
            await whole(engine, request())
        await until(lambda: all(s.serving or s.losses for s in engine.status()))
        await until(lambda: serving(engine) == 2)
        chunks = await whole(engine, request())
        assert says_which_weights(chunks)


async def test_a_folder_without_weights_loses_no_server(tmp_path):
    async with replicas(2) as servers, engine_on(servers) as engine:
        with pytest.raises(ModelMissing):
            await engine.load_weights(1, tmp_path)
        assert serving(engine) == 2


async def test_what_happens_to_servers_is_logged(caplog):
    async with replicas(2) as servers, engine_on(servers) as engine:
        with caplog.at_level(logging.WARNING, "polar.engines"):
            await servers[0].kill()
            await until(lambda: serving(engine) == 1)
            await servers[0].start()
            await until(lambda: serving(engine) == 2)
        told = [(record.address, record.event) for record in caplog.records]
        assert told == [(servers[0].url, "lost"), (servers[0].url, "returned")]


async def test_closing_wakes_a_call_that_waits_for_a_server():
    async with replicas(1) as servers, engine_on(servers) as engine:
        await servers[0].kill()
        waits = asyncio.create_task(whole(engine, request()))
        await until(lambda: not serving(engine))
        await engine.aclose()
        await asyncio.wait([waits], timeout=10)
        assert isinstance(waits.exception(), EngineError)
