"""What every engine promises.

vLLM's share is run by `make test-vllm`, llama.cpp's by `make test-llamacpp`, against real servers;
`..._wire` is an engine with the answers of such a server made up in the test.
"""

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest
from engine_servers import LLAMACPP_URL_ENV, MODEL_ENV, URL_ENV, needed
from llamacpp_wire import llamacpp_wire
from sglang_wire import sglang_wire
from tiny_models import tiny_model

from polar.engines import SampleRequest, TapedEngine
from polar.engines import load as load_engine
from polar.engines.embedded import EmbeddedEngine
from polar.engines.llamacpp import LlamaCppEngine
from polar.engines.scripted import ScriptedEngine
from polar.engines.settings import EmbeddedSettings, LlamaCppSettings, SglangSettings, VllmSettings
from polar.engines.sglang import SglangEngine
from polar.engines.vllm import VllmEngine
from polar.errors import ContextOverflow, EngineError
from polar.types import Sampling

PROMPT = (5, 6, 7, 8)
LONG = 60


def scripted():
    return ScriptedEngine(lambda prompt: [9, 3, 4, *range(10, 80)], chunk_tokens=2, max_context=96)


def embedded():
    return EmbeddedEngine(tiny_model(), EmbeddedSettings(chunk_tokens=2, max_concurrency=4))


UPDATING = (
    "scripted",
    "embedded",
    "taped",
    "sglang_wire",
    pytest.param("vllm", marks=pytest.mark.vllm),
)
SLOW = pytest.mark.timeout(300)  # a real server shares the cores with whatever else runs
FIXED = ("llamacpp_wire", pytest.param("llamacpp", marks=[pytest.mark.llamacpp, SLOW]))

updating = pytest.mark.parametrize("engine", UPDATING, indirect=True)
"""For engines that declare weight updates."""
fixed = pytest.mark.parametrize("engine", FIXED, indirect=True)
"""For engines that declare that they take none."""


@pytest.fixture(params=[*UPDATING, *FIXED])
async def engine(request, tmp_path):
    make = {
        "scripted": scripted,
        "embedded": embedded,
        "taped": lambda: TapedEngine(embedded(), tmp_path / "tape"),
        "vllm": lambda: load_engine("vllm")(VllmSettings(urls=(needed(URL_ENV),))),
        "llamacpp": lambda: LlamaCppEngine(LlamaCppSettings(urls=(needed(LLAMACPP_URL_ENV),))),
        "sglang_wire": lambda: SglangEngine(SglangSettings(urls=(url,))),
        "llamacpp_wire": lambda: LlamaCppEngine(LlamaCppSettings(urls=(url,))),
    }[request.param]
    async with AsyncExitStack() as stack:
        if request.param == "llamacpp_wire":
            url = await stack.enter_async_context(llamacpp_wire())
        if request.param == "sglang_wire":
            url, _ = await stack.enter_async_context(sglang_wire())
        engine = await asyncio.to_thread(make)  # a kernel may be compiled
        yield engine
        await engine.aclose()
        if request.param == "vllm":  # the server goes on, and must not stay paused
            after = make()
            await after.resume()
            await after.aclose()


def request(max_tokens=6, **sampling) -> SampleRequest:
    return SampleRequest(PROMPT, Sampling(temperature=0.0, max_tokens=max_tokens, **sampling))


async def whole(engine, asked):
    async with aclosing(engine.sample(asked)) as chunks:
        return [chunk async for chunk in chunks]


def tokens(chunks):
    return [token for chunk in chunks for token in chunk.token_ids]


@asynccontextmanager
async def streaming(engine, asked):
    """Follow a stream in a task, into a list."""
    seen = []

    async def follow():
        async with aclosing(engine.sample(asked)) as chunks:
            async for chunk in chunks:
                seen.append(chunk)

    task = asyncio.create_task(follow())
    try:
        yield seen, task
    finally:
        task.cancel()
        await asyncio.wait([task])


def weights_for(engine, tmp_path):
    """A folder of weights for engines that read them from one."""
    if isinstance(engine, VllmEngine):
        return Path(needed(MODEL_ENV))
    if isinstance(engine, SglangEngine):
        (tmp_path / "model.safetensors").touch()
        return tmp_path
    return None


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


async def test_a_probe_tells_that_ids_and_logprobs_are_there(engine):
    found = await engine.probe()
    assert (found.token_ids, found.logprobs) == (True, True)
    assert found.max_context > len(PROMPT)
    assert found.detail


async def test_every_token_has_a_logprob_and_the_last_chunk_says_why_it_ended(engine):
    chunks = await whole(engine, request(max_tokens=6))
    assert len(tokens(chunks)) == 6
    assert all(len(chunk.token_ids) == len(chunk.logprobs) for chunk in chunks)
    assert all(logprob <= 0.0 for chunk in chunks for logprob in chunk.logprobs)
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == "length"


async def test_a_stop_token_is_sampled_recorded_and_ends_the_reply(engine):
    free = tokens(await whole(engine, request()))
    stop = free[2]
    stopped = await whole(engine, request(stop_token_ids=(stop,)))
    assert tokens(stopped) == free[: free.index(stop) + 1]
    assert stopped[-1].finish_reason == "stop"


async def test_greedy_sampling_says_the_same_twice(engine):
    assert tokens(await whole(engine, request())) == tokens(await whole(engine, request()))


async def test_a_prompt_without_room_for_a_token_is_refused(engine):
    window = (await engine.probe()).max_context
    asked = SampleRequest([5] * window, Sampling(max_tokens=1))
    with pytest.raises(ContextOverflow):
        await whole(engine, asked)


async def test_streams_at_the_same_time_are_each_whole(engine):
    asked = [SampleRequest((*PROMPT, n), Sampling(max_tokens=5), id=str(n)) for n in range(8)]
    found = await asyncio.gather(*(whole(engine, each) for each in asked))
    assert [len(tokens(chunks)) for chunks in found] == [5] * 8


async def test_a_stream_that_is_left_does_not_disturb_the_next(engine):
    async with aclosing(engine.sample(request(max_tokens=LONG))) as chunks:
        await anext(chunks)
    assert len(tokens(await whole(engine, request()))) == 6


async def test_a_pause_holds_streams_and_loses_nothing(engine):
    expected = tokens(await whole(engine, request(max_tokens=LONG)))
    await engine.pause()
    async with streaming(engine, request(max_tokens=LONG)) as (seen, task):
        await asyncio.sleep(0.3)
        assert not seen
        await engine.resume()
        await asyncio.wait_for(task, 30)
    assert tokens(seen) == expected


@updating
async def test_an_engine_that_takes_weights_declares_it(engine):
    assert (await engine.probe()).weight_updates


@fixed
async def test_an_engine_that_takes_no_weights_declares_and_refuses_it(engine, tmp_path):
    assert not (await engine.probe()).weight_updates
    (tmp_path / "model.safetensors").touch()
    await engine.pause()
    with pytest.raises(EngineError):
        await engine.load_weights(3, tmp_path)
    await engine.resume()
    assert len(tokens(await whole(engine, request()))) == 6


@updating
async def test_tokens_after_an_update_carry_its_version(engine, tmp_path):
    folder = weights_for(engine, tmp_path)
    first = await whole(engine, request())
    await engine.pause()
    await engine.load_weights(3, folder)
    await engine.resume()
    second = await whole(engine, request())
    assert {chunk.weight_version for chunk in first} == {0}
    assert {chunk.weight_version for chunk in second} == {3}
    assert tokens(first) == tokens(second)


@updating
async def test_a_reply_across_an_update_says_which_weights_sampled_which_token(engine, tmp_path):
    folder = weights_for(engine, tmp_path)
    async with streaming(engine, request(max_tokens=LONG)) as (seen, task):
        await until(lambda: seen)
        await engine.pause()
        await engine.load_weights(4, folder)
        await engine.resume()
        await asyncio.wait_for(task, 60)
    versions = [chunk.weight_version for chunk in seen for _ in chunk.token_ids]
    assert len(versions) == LONG
    assert versions == sorted(versions)
    assert versions[0] == 0


async def test_closing_ends_open_streams_with_an_error(engine):
    await engine.probe()
    await engine.pause()
    async with streaming(engine, request(max_tokens=LONG)) as (_, task):
        await asyncio.sleep(0.1)
        await engine.aclose()
        await asyncio.wait([task], timeout=30)
        assert task.done()
        assert isinstance(task.exception(), EngineError)
