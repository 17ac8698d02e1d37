"""Chat Completions as vLLM 0.32 was seen to serve them with token ids, within the test.

The server makes its prompts itself, of bytes, and answers with scripts in order.
"""

import asyncio
import json
import math
from collections import deque
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

START, END = 256, 257
PROBE_REPLY = "probed"


def logprob(token, temperature=1.0):
    return -math.log(2 + token) / temperature


def turn(role, content):
    return [START, *f"{role}\n{content}".encode(), END, *b"\n"]


class OpenAIWire:
    """What a server remembers, and how it is.

    Args:
        ids: Tell token ids and logprobs when asked.
        strict: Refuse fields that OpenAI's own server does not know.
        shows_tools: With which `tool_choice` the template shows tools to the model.
        raw: Tell logprobs from before temperature.
        window: Of the model.
    """

    def __init__(self, *, ids=True, strict=False, shows_tools="none", raw=False, window=4096):
        self.ids, self.strict, self.raw, self.window = ids, strict, raw, window
        self.shows_tools = shows_tools
        self.scripts, self.asked, self.keys = deque(), [], []
        self.render_reply = lambda content: content
        """What the template makes of a reply when it comes back as history."""
        self.cut_after = self.forget_from = self.hold_at = None
        self.calls = ()
        """Tool calls of a reply that tells no ids."""
        self.running = asyncio.Event()
        self.running.set()

    def app(self):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_get("/v1/models", self.models)
        return app

    async def models(self, request):
        self.keys.append(request.headers.get("Authorization"))
        return web.json_response({"data": [{"id": "bytes", "max_model_len": self.window}]})

    def prompt(self, body):
        """Render, as the server's own template does."""
        shown = body.get("tools") if body.get("tool_choice") == self.shows_tools else None
        ids = [*json.dumps(shown).encode()] if shown else []
        for message in body["messages"]:
            content = message["content"] or ""
            assistant = message["role"] == "assistant"
            ids += turn(message["role"], self.render_reply(content) if assistant else content)
        return [*ids, START, *b"assistant\n"]

    def refusal(self, body, prompt):
        known = {"model", "messages", "stream", "stream_options", "max_tokens", "tools"}
        known |= {"tool_choice", "temperature", "top_p", "seed"}
        if self.strict and (unknown := sorted(body.keys() - known)):
            return {"message": f"Unrecognized request argument: {unknown[0]}", "code": None}
        if body.get("tool_choice") == "auto" and self.ids and self.shows_tools != "auto":
            return {"message": '"auto" tool choice requires a parser', "code": 400, "param": None}
        asked = body.get("max_tokens") or 1
        if len(prompt) + asked > self.window:
            said = f"maximum context length is {self.window} tokens, your prompt contains at least"
            said += f" {len(prompt)} input tokens"
            return {"message": said, "code": 400, "param": "input_tokens"}
        return None

    async def complete(self, request):
        body = await request.json()
        prompt = self.prompt(body)
        self.asked.append(body)
        if (error := self.refusal(body, prompt)) is not None:
            return web.json_response({"error": error}, status=400)
        probing = body["messages"][-1]["content"] == "Say hi."
        script = PROBE_REPLY if probing or not self.scripts else self.scripts.popleft()
        reply = [*script.encode(), END]
        limit = body.get("max_tokens") or self.window - len(prompt)
        reason = "stop" if len(reply) <= limit else "length"
        reply = reply[:limit]
        if not body.get("stream"):
            return web.json_response({"choices": [self.choice(body, reply[:1], "length")]})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in self.events(body, prompt, reply, reason):
            if event is None:
                request.transport.close()
                return response
            await self.running.wait()
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    def events(self, body, prompt, reply, reason):
        wants_ids = self.ids and body.get("return_token_ids")
        first = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        yield first | ({"prompt_token_ids": prompt} if wants_ids else {})
        for place, token in enumerate(reply):
            if place == self.cut_after:
                yield None
            if place == self.hold_at:
                self.running.clear()
            last = place == len(reply) - 1
            ending = ("tool_calls" if self.calls else reason) if last else None
            told = self.choice(body, [token], ending)
            if self.forget_from is not None and place >= self.forget_from:
                del told["token_ids"], told["logprobs"]
            yield {"choices": [told]}
        if body.get("stream_options"):
            counted = {"prompt_tokens": len(prompt), "completion_tokens": len(reply)}
            yield {"choices": [], "usage": counted}

    def choice(self, body, tokens, reason):
        text = bytes(token for token in tokens if token < START).decode(errors="replace")
        delta = {"content": text}
        if reason and self.calls:
            delta |= {"tool_calls": [call | {"index": n + 3} for n, call in enumerate(self.calls)]}
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        if self.ids and body.get("return_token_ids"):
            warmth = 1.0 if self.raw else max(body["temperature"], 1e-3)
            content = [self.told(token, warmth) for token in tokens]
            choice |= {"token_ids": list(tokens), "logprobs": {"content": content}}
        return choice

    def told(self, token, warmth):
        others = [token, token + 1]
        top = [{"token": f"token_id:{t}", "logprob": logprob(t, warmth)} for t in others]
        return {
            "token": f"token_id:{token}",
            "logprob": logprob(token, warmth),
            "top_logprobs": top,
        }


@asynccontextmanager
async def openai_wire(**how):
    """Serve the wire form on loopback and give its address and the server's memory."""
    wire = OpenAIWire(**how)
    async with TestServer(wire.app()) as server:
        yield str(server.make_url("")), wire
