"""What a server must be for the vLLM engine to use it, and what is said when it is not."""

import httpx
import pytest

from polar.engines import load
from polar.engines.settings import VllmSettings
from polar.errors import EngineError, EngineRefused

MODELS = {"data": [{"id": "m", "max_model_len": 512}]}
TOP = [{"token_id": 1, "logprob": -0.1}, {"token_id": 2, "logprob": -2.1}]
COOL = [{"token_id": 1, "logprob": -0.0}, {"token_id": 2, "logprob": -4.0}]


def choice(top, **without):
    logprobs = {"content": [{"token_id": 1, "logprob": -0.1, "top_logprobs": top}]}
    return {"token_ids": [1], "logprobs": logprobs, "finish_reason": "length"} | without


def server(models=MODELS, warm=TOP, cool=COOL, status=200, dev=True, **without):
    """Answer as vLLM does, but for what is changed."""

    def answer(request: httpx.Request) -> httpx.Response:
        match request.url.path:
            case "/v1/models":
                if isinstance(models, str):
                    return httpx.Response(200, text=models)
                return httpx.Response(200, json=models)
            case "/inference/v1/generate":
                top = warm if b'"temperature":1.0' in request.content else cool
                body = {"choices": [choice(top, **without)]}
                return httpx.Response(status, json=body)
            case "/version":
                return httpx.Response(200, json={"version": "0.32.0"})
            case _:
                return httpx.Response(200 if dev else 404, json={})

    return httpx.MockTransport(answer)


async def probed(transport, **settings):
    engine = load("vllm")(VllmSettings(**settings), transport=transport)
    try:
        return await engine.probe()
    finally:
        await engine.aclose()


async def test_a_server_is_known_by_what_it_samples():
    found = await probed(server())

    assert (found.model, found.max_context, found.weight_updates) == ("m", 512, True)
    assert "0.32.0" in found.detail
    assert "temperature 1 only" not in found.detail


async def test_raw_logprobs_and_a_server_without_updates_are_told():
    found = await probed(server(cool=TOP, dev=False))

    assert not found.weight_updates
    assert "temperature 1 only" in found.detail


@pytest.mark.parametrize(
    ("transport", "kind", "what"),
    [
        (server(token_ids=None), EngineRefused, "no token ids or no logprobs"),
        (server(logprobs=None), EngineRefused, "no token ids or no logprobs"),
        (server(status=403), EngineRefused, "token endpoints shut"),
        (server(status=404), EngineError, "no such address"),
        (server(models="<html>"), EngineError, "no JSON object"),
        (server(models={"data": [{"id": "m"}]}), EngineRefused, "not vLLM"),
        (server(models={"models": []}), EngineRefused, "not vLLM"),
        (server(models={"data": []}), EngineError, "does not serve any model"),
    ],
)
async def test_what_cannot_be_used_is_refused_with_what_to_do(transport, kind, what):
    with pytest.raises(kind, match=what):
        await probed(transport)


async def test_a_model_that_is_not_served_is_named():
    with pytest.raises(EngineError, match="a model 'other'"):
        await probed(server(), model="other")


async def test_an_address_where_nobody_answers_is_told():
    engine = load("vllm")(VllmSettings(urls=("http://127.0.0.1:1",)))
    with pytest.raises(EngineError, match="does not answer") as caught:
        await engine.probe()
    assert "127.0.0.1:1" in str(caught.value)
    await engine.aclose()
