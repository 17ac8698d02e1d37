"""What a server must be for the vLLM engine to use it, and what is said when it is not."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

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

    async def answer(request: web.Request) -> web.Response:
        match request.path:
            case "/v1/models":
                if isinstance(models, str):
                    return web.Response(text=models)
                return web.json_response(models)
            case "/inference/v1/generate":
                top = warm if b'"temperature":1.0' in await request.read() else cool
                return web.json_response({"choices": [choice(top, **without)]}, status=status)
            case "/version":
                return web.json_response({"version": "0.32.0"})
            case _:
                return web.json_response({}, status=200 if dev else 404)

    return answer


async def probed(answer, before=None, **settings):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        engine = load("vllm")(VllmSettings(urls=(str(server.make_url("")),), **settings))
        try:
            if before is not None:
                await before(engine)
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
    ("answer", "kind", "what"),
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
async def test_what_cannot_be_used_is_refused_with_what_to_do(answer, kind, what):
    with pytest.raises(kind, match=what):
        await probed(answer)


async def test_a_model_that_is_not_served_is_named():
    with pytest.raises(EngineError, match="a model 'other'"):
        await probed(server(), model="other")


async def test_an_address_where_nobody_answers_is_told():
    engine = load("vllm")(VllmSettings(urls=("http://127.0.0.1:1",)))
    with pytest.raises(EngineError, match="does not answer") as caught:
        await engine.probe()
    assert "127.0.0.1:1" in str(caught.value)
    await engine.aclose()


def left_paused():
    """Answer as a vLLM whose run was killed while it gave it weights."""
    asked, running = [], server()

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/is_paused":
            return web.json_response({"is_paused": "/resume" not in asked})
        assert request.path != "/inference/v1/generate" or "/resume" in asked
        return await running(request)

    return answer


async def test_a_paused_server_is_told_and_not_waited_for():
    with pytest.raises(EngineError, match=r"is paused.*POST /resume"):
        await probed(left_paused())


async def test_a_run_that_begins_lets_a_server_go_on_that_an_earlier_one_left_paused():
    found = await probed(left_paused(), before=lambda engine: engine.resume())

    assert found.weight_updates


async def test_a_server_that_knows_no_pause_is_used_all_the_same():
    found = await probed(server(dev=False), before=lambda engine: engine.resume())

    assert not found.weight_updates
