"""The llama.cpp engine against the server's wire form, and where that form tells too little."""

import math
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from llamacpp_wire import is_part_of_a_character, likely, llamacpp_wire, raw_logprobs

from polar.engines import SampleRequest
from polar.engines.llamacpp import LlamaCppEngine
from polar.engines.llamacpp_wire import logprob_in, read_completion
from polar.engines.settings import LlamaCppSettings
from polar.errors import EngineError, EngineRefused
from polar.types import Sampling

PROMPT = (5, 6, 7)


@asynccontextmanager
async def engine_at(url, **settings):
    engine = LlamaCppEngine(LlamaCppSettings(urls=(url,), **settings))
    try:
        yield engine
    finally:
        await engine.aclose()


async def sampled(sampling, requests=None, **settings):
    async with llamacpp_wire(requests) as url, engine_at(url, **settings) as engine:
        return [chunk async for chunk in engine.sample(SampleRequest(PROMPT, sampling))]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_tokens_within_a_character_have_the_logprob_they_were_sampled_at(temperature):
    chunks = await sampled(Sampling(temperature=temperature, max_tokens=40))

    context, parts = list(PROMPT), 0
    told = [pair for c in chunks for pair in zip(c.token_ids, c.logprobs, strict=True)]
    for token, logprob in told:
        raw = raw_logprobs(context)
        total = sum(math.exp(each / temperature) for each in raw.values())
        expected = raw[token] / temperature - math.log(total)
        assert token == likely(context)
        assert logprob == pytest.approx(expected, abs=1e-6)
        parts += is_part_of_a_character(token)
        context.append(token)
    assert len(told) == 40
    assert parts > 3, "the case is not in the sample"
    assert sum(chunk.measured_tokens for chunk in chunks) == parts


async def test_a_logprob_that_is_certain_is_not_asked_for():
    requests = []
    chunks = await sampled(Sampling(temperature=0.0, max_tokens=40), requests)
    assert any(is_part_of_a_character(t) for c in chunks for t in c.token_ids)
    assert not any("logit_bias" in each for each in requests)
    assert sum(chunk.measured_tokens for chunk in chunks) == 0


async def test_a_reply_begins_with_one_token_and_grows_to_whole_chunks():
    chunks = await sampled(Sampling(max_tokens=24), chunk_tokens=8)
    assert [len(chunk.token_ids) for chunk in chunks] == [1, 2, 4, 8, 8, 1]
    assert chunks[-1].finish_reason == "length"


async def test_what_is_sampled_after_a_stop_token_is_counted_and_not_handed_over():
    free = [t for c in await sampled(Sampling(max_tokens=24)) for t in c.token_ids]
    stop = next(
        token for place, token in enumerate(free) if place > 8 and token not in free[:place]
    )
    requests = []
    chunks = await sampled(Sampling(max_tokens=24, stop_token_ids=(stop,)), requests)
    assert [t for c in chunks for t in c.token_ids] == free[: free.index(stop) + 1]
    assert chunks[-1].finish_reason == "stop"
    replies = [each for each in requests if each["n_probs"] == 1]
    asked = sum(each["n_predict"] for each in replies)
    assert [chunk.discarded_tokens for chunk in chunks[:-1]] == [0] * (len(chunks) - 1)
    assert chunks[-1].discarded_tokens == asked - free.index(stop) - 1 > 0


async def test_every_request_says_all_that_changes_the_distribution():
    requests = []
    await sampled(Sampling(temperature=0.7, top_p=0.9, top_k=5, max_tokens=1, seed=3), requests)
    asked = requests[-1] if "logit_bias" not in requests[-1] else requests[-2]
    assert asked["samplers"] == ["temperature", "top_k", "top_p"]
    assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.7, 0.9, 5)
    assert asked["post_sampling_probs"]
    assert asked["seed"] == 3


async def test_a_seed_differs_from_request_to_request_of_a_reply():
    requests = []
    await sampled(Sampling(max_tokens=16, seed=3), requests)
    seeds = [each["seed"] for each in requests[2:] if "logit_bias" not in each]
    assert seeds[0] == 3
    assert len(set(seeds)) == len(seeds) > 3


def test_probabilities_before_sampling_are_refused():
    told = [{"id": 3, "logprob": -1.0}]
    answer = {"tokens": [3], "completion_probabilities": told, "stop_type": "limit"}
    with pytest.raises(EngineRefused, match="no probabilities"):
        read_completion(answer, 1)


def test_an_answer_without_ids_is_refused():
    with pytest.raises(EngineRefused, match="no token ids"):
        read_completion({"tokens_predicted": 3, "content": "abc", "stop_type": "limit"}, 3)


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=12))
def test_a_probability_is_never_given_to_another_token(tokens):
    """Where equal tokens stand side by side it may be unknown whose it is: then it is nobody's."""
    told = [{"id": t, "prob": 0.5 / (n + 1)} for n, (t, whole) in enumerate(tokens) if whole]
    ids = [token for token, _ in tokens]
    answer = {"tokens": ids, "completion_probabilities": told, "stop_type": "limit"}
    found = read_completion(answer, len(ids)).logprobs
    for n, (logprob, (_, whole)) in enumerate(zip(found, tokens, strict=True)):
        assert logprob is None or (whole and logprob == pytest.approx(math.log(0.5 / (n + 1))))
    if all(whole for _, whole in tokens):
        assert None not in found


def test_logprobs_after_top_k_and_top_p_are_of_what_is_left():
    raw = {7: math.log(0.5), 8: math.log(0.3), 9: math.log(0.2)}
    assert logprob_in(raw, 8, Sampling(top_k=2)) == pytest.approx(math.log(0.3 / 0.8))
    assert logprob_in(raw, 8, Sampling(top_p=0.6)) == pytest.approx(math.log(0.3 / 0.8))
    assert logprob_in(raw, 9, Sampling(top_p=0.6)) is None


async def test_a_server_that_tells_raw_probabilities_at_every_temperature_is_refused():
    async with llamacpp_wire(warmed=True) as url, engine_at(url) as engine:
        with pytest.raises(EngineRefused, match="not of the distribution"):
            await engine.probe()


async def test_what_is_no_llama_cpp_server_is_told():
    async def other(request):
        return web.json_response({"hello": "world"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", other)
    async with TestServer(app) as server, engine_at(str(server.make_url(""))) as engine:
        with pytest.raises(EngineError, match=r"not of llama.cpp's form"):
            await engine.probe()
