"""llama.cpp's wire form over a model of two tokens, served within the test.

As in the real server, tokens that end within a character (here: every fifth id) have no
probability in the answer.
"""

import math
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

WINDOW = 96
VOCABULARY = 128
WHOLE = 81
BUILD = {"build_info": "b1"}
MODEL = {"id": "two", "meta": {"n_vocab": VOCABULARY}}


def likely(context):
    """The likelier of the two tokens that may follow."""
    return 9 + (7 * sum(context[-3:]) + 3 * len(context)) % 80


def raw_logprobs(context):
    token = likely(context)
    return {token: -math.log1p(math.exp(-2.0)), token + 1: -2.0 - math.log1p(math.exp(-2.0))}


def is_part_of_a_character(token):
    return token % 5 == 0


@asynccontextmanager
async def llamacpp_wire(requests=None, *, warmed=False):
    """Serve the wire form on loopback and give its address; requests to complete go to a list.

    Args:
        requests: Where they go.
        warmed: Tell the probabilities of temperature 1 at every temperature.
    """
    asked = [] if requests is None else requests

    async def completion(request):
        body = await request.json()
        asked.append(body)
        return web.json_response(_completion(body | {"temperature": 1.0} if warmed else body))

    app = web.Application()
    app.router.add_get("/props", _says({"default_generation_settings": {"n_ctx": WINDOW}, **BUILD}))
    app.router.add_get("/v1/models", _says({"data": [MODEL]}))
    app.router.add_post("/tokenize", _says({"tokens": [WHOLE]}))
    app.router.add_post("/completion", completion)
    app.router.add_get("/health", _says({"status": "ok"}))
    async with TestServer(app) as server:
        yield str(server.make_url(""))


def _says(content):
    async def answer(request):
        return web.json_response(content)

    return answer


def _completion(body):
    context, told, sampled = list(body["prompt"]), [], []
    while len(sampled) < body["n_predict"] and len(context) < WINDOW:
        raw = raw_logprobs(context)
        token = body["logit_bias"][0][0] if "logit_bias" in body else likely(context)
        if not is_part_of_a_character(token):
            told.append(_told(token, raw, body))
        sampled.append(token)
        context.append(token)
    return {
        "tokens": sampled,
        "tokens_predicted": len(sampled),
        "completion_probabilities": told,
        "stop_type": "limit",
        "timings": {"cache_n": 2},
    }


def _told(token, raw, body):
    if not body["post_sampling_probs"]:
        top = [{"id": id_, "logprob": logprob} for id_, logprob in raw.items()]
        return {"id": token, "logprob": -9.0, "top_logprobs": top}
    sharp = {id_: math.exp(value / max(body["temperature"], 1e-3)) for id_, value in raw.items()}
    total = sum(sharp.values())
    top = [{"id": id_, "prob": value / total} for id_, value in sharp.items()]
    return {"id": token, "prob": sharp[token] / total, "top_probs": top}
