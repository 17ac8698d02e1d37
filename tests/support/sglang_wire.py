"""SGLang's wire form, as its server of version 0.5.23 was seen to speak it, within the test.

A context determines two tokens that may follow, of which the likelier is sampled; its logprob is
of both after temperature, so that a token sampled after something else shows.
"""

import asyncio
import math
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

WINDOW = 96
EOS = 7
"""The model's own end token: the server stops at it unless told to ignore it."""


def likely(context):
    return 9 + (7 * sum(context[-3:]) + 3 * len(context)) % 80


def logprob(token, context, temperature):
    """Natural log of a token's probability among the two, after temperature."""
    gap = 2.0 / max(temperature, 1e-3)
    chosen = 0.0 if token == likely(context) else -gap
    return chosen - math.log1p(math.exp(-gap))


class SglangWire:
    """What a server remembers.

    Args:
        incremental: Tell only new tokens in an event, as with --incremental-streaming-output.
        original: Tell logprobs from before temperature, as with SGLANG_RETURN_ORIGINAL_LOGPROB.
    """

    def __init__(self, *, incremental=False, original=False):
        self.incremental, self.original = incremental, original
        self.label, self.model_path = "default", "/models/two"
        self.eos_after = None
        self.update_fails = False
        self.spans = True
        self.cut_after = self.abort_after = None
        self.asked, self.told = [], []
        self.running = asyncio.Event()
        self.running.set()

    def restart(self):
        """Forget the weights, as a server that is started anew does."""
        self.label, self.model_path = "default", "/models/two"

    def app(self):
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/{command:pause_generation|continue_generation}", self.command)
        app.router.add_post("/update_weights_from_disk", self.update)
        for path in ("/health", "/model_info", "/server_info", "/v1/models"):
            app.router.add_get(path, self.page)
        return app

    async def page(self, request):
        model = {"id": self.model_path, "parent": None, "max_model_len": 128}
        adapter = {"id": "tuned", "parent": self.model_path, "max_model_len": None}
        pages = {
            "/model_info": {
                "model_path": self.model_path,
                "served_model_name": self.model_path,
                "tokenizer_path": "/models/two",
                "is_generation": True,
                "weight_version": self.label,
            },
            "/server_info": {"version": "0.5.23", "max_req_input_len": WINDOW},
            "/v1/models": {"data": [model, adapter]},
        }
        return web.json_response(pages.get(request.path, {}))

    async def command(self, request):
        name, body = request.match_info["command"], await request.json()
        self.told.append((name, body))
        if name == "pause_generation":
            self.running.clear()
        else:
            self.running.set()
        return web.json_response({"status": "ok"})

    async def update(self, request):
        body = await request.json()
        self.told.append(("update_weights_from_disk", body))
        if self.update_fails:
            refused = {"success": False, "message": "Failed to load", "num_paused_requests": 0}
            return web.json_response(refused, status=400)
        self.label, self.model_path = body["weight_version"], body["model_path"]
        return web.json_response({"success": True, "message": "ok", "num_paused_requests": 0})

    async def generate(self, request):
        body = await request.json()
        self.asked.append(body)
        reply = _Reply(self, body)
        if not body.get("stream"):
            while reply.reason is None:
                reply.step()
            return web.json_response(reply.event())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while reply.reason is None:
            await asyncio.sleep(0.002)
            await self.running.wait()
            if len(reply.ids) == self.cut_after:
                request.transport.close()
                return response
            reply.step()
            await response.write(b"data: " + web.json_response(reply.event()).body + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


class _Reply:
    def __init__(self, server, body):
        self.server, self.body = server, body
        self.asked = body["sampling_params"]
        self.context, self.ids, self.told, self.top = list(body["input_ids"]), [], [], []
        self.spans, self.reason, self.sent = [], None, 0

    def step(self):
        if len(self.ids) == self.server.abort_after:
            self.reason = {"type": "abort", "message": "Aborted by a pause"}
            return
        for _ in range(2):
            if self.reason is None:
                self.sample()

    def sample(self):
        warmth = 1.0 if self.server.original else self.asked["temperature"]
        token = likely(self.context)
        if len(self.ids) == self.server.eos_after and not self.asked["ignore_eos"]:
            token = EOS
        self.told.append([logprob(token, self.context, warmth), token, None])
        self.top.append([[logprob(t, self.context, warmth), t, None] for t in (token, token + 1)])
        self.ids.append(token)
        self.context.append(token)
        if not self.spans or self.spans[-1]["version"] != self.server.label:
            start = len(self.ids) - 1
            self.spans.append({"version": self.server.label, "start": start})
        self.spans[-1]["end"] = len(self.ids)
        stops = () if self.asked["ignore_eos"] else (*self.asked["stop_token_ids"], EOS)
        if token in stops:
            self.reason = {"type": "stop", "matched": token}
        elif len(self.ids) == self.asked["max_new_tokens"]:
            self.reason = {"type": "length", "length": len(self.ids)}

    def event(self):
        start = self.sent if self.server.incremental and self.body.get("stream") else 0
        self.sent = len(self.ids)
        meta = {
            "id": "r",
            "finish_reason": self.reason,
            "prompt_tokens": len(self.body["input_ids"]),
            "completion_tokens": len(self.ids),
            "cached_tokens": 2,
            "weight_version": self.server.label,
            "output_token_logprobs": self.told[start:],
            "output_token_logprobs_length": len(self.told),
        }
        if self.body.get("top_logprobs_num"):
            meta["output_top_logprobs"] = self.top[start:]
        if self.reason and self.server.spans:
            meta["weight_versions"] = self.spans
        if self.reason and self.reason["type"] == "abort" and self.server.incremental:
            start = len(self.ids) - 1  # as the real one: the last token once more
        return {"text": "", "output_ids": self.ids[start:], "meta_info": meta}


@asynccontextmanager
async def sglang_wire(**how):
    """Serve the wire form on loopback and give its address and the server's memory."""
    wire = SglangWire(**how)
    async with TestServer(wire.app()) as server:
        yield str(server.make_url("")), wire
