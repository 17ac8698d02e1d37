"""A real vLLM server: its logprobs, its weight updates, and what it does when a client leaves."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest
import torch
from engine_servers import MODEL_ENV, URL_ENV, needed
from transformers import AutoModelForCausalLM

from polar.engines import SampleRequest
from polar.engines import load as load_engine
from polar.engines.settings import VllmSettings
from polar.errors import ModelMissing
from polar.types import Sampling

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

PROMPT = tuple(range(1000, 1040))


@pytest.fixture(scope="module")
def model_dir() -> Path:
    return Path(needed(MODEL_ENV))


@pytest.fixture(scope="module")
def model(model_dir):
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


@pytest.fixture
async def engine():
    engine = load_engine("vllm")(VllmSettings(urls=(needed(URL_ENV),)))
    yield engine
    await engine.resume()
    await engine.aclose()


async def sampled(engine, **sampling):
    request = SampleRequest(PROMPT, Sampling(max_tokens=24, seed=1, **sampling))
    async with aclosing(engine.sample(request)) as chunks:
        found = [chunk async for chunk in chunks]
    ids = [token for chunk in found for token in chunk.token_ids]
    return ids, torch.tensor([logprob for chunk in found for logprob in chunk.logprobs])


@torch.no_grad()
def logprobs_of(model, ids, temperature=1.0):
    logits = model(torch.tensor([[*PROMPT, *ids]])).logits[0].float() / temperature
    rows = torch.arange(len(PROMPT) - 1, len(PROMPT) + len(ids) - 1)
    return logits.log_softmax(-1)[rows, torch.tensor(ids)]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_its_logprobs_are_those_of_the_distribution_it_sampled_from(
    engine, model, temperature
):
    ids, logprobs = await sampled(engine, temperature=temperature)
    gap = (logprobs - logprobs_of(model, ids, temperature)).abs().mean().item()
    assert gap < 0.1  # the server computes in bfloat16


async def test_new_weights_are_what_samples_after_an_update(engine, model, model_dir, tmp_path):
    before, _ = await sampled(engine, temperature=1.0)
    changed = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    with torch.no_grad():
        changed.model.layers[10].mlp.down_proj.weight.mul_(1.5)
    changed.save_pretrained(tmp_path)
    try:
        await engine.pause()
        await engine.load_weights(1, tmp_path)
        await engine.resume()
        ids, logprobs = await sampled(engine, temperature=1.0)
        assert (logprobs - logprobs_of(changed, ids)).abs().mean().item() < 0.05
        assert (logprobs - logprobs_of(model, ids)).abs().mean().item() > 0.1
    finally:
        await engine.pause()
        await engine.load_weights(2, model_dir)
        await engine.resume()
    after, _ = await sampled(engine, temperature=1.0)
    assert after == before


async def test_a_folder_without_weights_is_refused_before_the_server_sees_it(engine, tmp_path):
    with pytest.raises(ModelMissing):
        await engine.load_weights(1, tmp_path)


async def test_a_generation_that_nobody_reads_is_aborted(engine):
    request = SampleRequest(PROMPT, Sampling(max_tokens=4000))
    async with aclosing(engine.sample(request)) as chunks:
        await anext(chunks)
        assert await running() == 1
    async with asyncio.timeout(20):
        while await running():  # noqa: ASYNC110 - a server is asked
            await asyncio.sleep(0.1)


async def running() -> int:
    """Ask the server how many requests it works on."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{needed(URL_ENV)}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines)
