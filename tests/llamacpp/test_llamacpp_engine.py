"""A real llama.cpp server: whether its logprobs are those of the distribution it sampled from."""

import asyncio
from contextlib import aclosing

import httpx
import pytest
from engine_servers import LLAMACPP_URL_ENV, needed

from polar.engines import SampleRequest
from polar.engines.llamacpp import LlamaCppEngine
from polar.engines.llamacpp_wire import logprob_in
from polar.engines.settings import LlamaCppSettings
from polar.types import Sampling

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(300)]

PROMPT = (1, 4093, 198, 36218, 15876, 2, 198, 1, 520, 9531, 198)
VOCABULARY = 49152


@pytest.fixture
async def engine():
    engine = LlamaCppEngine(LlamaCppSettings(urls=(needed(LLAMACPP_URL_ENV),)))
    yield engine
    await engine.aclose()


async def sampled(engine, **sampling):
    request = SampleRequest(PROMPT, Sampling(**{"seed": 1} | sampling))
    async with aclosing(engine.sample(request)) as chunks:
        found = [chunk async for chunk in chunks]
    return [pair for c in found for pair in zip(c.token_ids, c.logprobs, strict=True)], found


async def post(body):
    async with httpx.AsyncClient(timeout=240) as client:
        return (await client.post(f"{needed(LLAMACPP_URL_ENV)}/completion", json=body)).json()


async def raw_logprobs(prefix):
    """What the model itself says of every token; nothing of the engine's is in it."""
    body = {"prompt": prefix, "n_predict": 1, "temperature": 0.0, "n_probs": VOCABULARY}
    (told,) = (await post(body))["completion_probabilities"]
    return {each["id"]: each["logprob"] for each in told["top_logprobs"]}


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 0.7, "top_k": 20},
        {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    ],
)
async def test_logprobs_are_of_the_distribution_that_was_sampled_from(engine, sampling):
    told, _ = await sampled(engine, max_tokens=12, **sampling)
    prefix = list(PROMPT)
    for token, logprob in told:
        expected = logprob_in(await raw_logprobs(prefix), token, Sampling(**sampling))
        assert logprob == pytest.approx(expected, abs=0.02)
        prefix.append(token)
    assert len(told) == 12


async def test_a_server_tells_no_probability_of_tokens_within_a_character_but_the_engine_does(
    engine,
):
    hot = {"temperature": 5.0, "seed": 2}
    body = {"prompt": PROMPT, "n_predict": 300, "n_probs": 1, "post_sampling_probs": True}
    body |= {"return_tokens": True, "samplers": ["temperature"]}
    answer = await post(body | hot)
    assert len(answer["completion_probabilities"]) < len(answer["tokens"]), "it now tells them all"

    told, chunks = await sampled(engine, max_tokens=300, **hot)
    assert len(told) == 300
    assert all(-40.0 < logprob < 0.0 for _, logprob in told)
    assert chunks[-1].finish_reason == "length"
    assert sum(chunk.measured_tokens for chunk in chunks) < 30, "it tells most of them"


async def test_the_end_of_the_window_ends_the_reply(engine):
    window = (await engine.probe()).max_context
    request = SampleRequest([5] * (window - 3), Sampling())
    async with aclosing(engine.sample(request)) as chunks:
        found = [chunk async for chunk in chunks]
    assert sum(len(chunk.token_ids) for chunk in found) <= 3
    assert found[-1].finish_reason == "length"


async def test_a_generation_that_nobody_reads_is_aborted(engine):
    async with aclosing(engine.sample(SampleRequest(PROMPT, Sampling()))) as chunks:
        await anext(chunks)
    async with asyncio.timeout(20):
        while await busy():  # noqa: ASYNC110 - a server is asked
            await asyncio.sleep(0.05)


async def busy() -> int:
    """Ask the server how many requests it works on."""
    async with httpx.AsyncClient() as client:
        slots = (await client.get(f"{needed(LLAMACPP_URL_ENV)}/slots")).json()
    return sum(slot["is_processing"] for slot in slots)
