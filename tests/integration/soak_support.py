"""Clients of a soak: conversations that now and then hang up in the middle of a reply."""

import asyncio
import json
import os
import random
from contextlib import suppress

import httpx
import numpy as np
from gateway_support import Setup
from replica_process import weights
from vllm_replica import logprob, reply_to

from polar.trajectory import BuildPolicy
from polar.trajectory.builders import drop_reason

__all__ = [
    "AT_ONCE",
    "SESSIONS",
    "TURNS",
    "Client",
    "assert_sampled",
    "descriptors",
    "play_all",
    "soak",
]

SESSIONS = 1000
AT_ONCE = 64
TURNS = 3
HANGS_UP = 0.1
UPDATE_EVERY = 4


class Client:
    """One session's harness: three turns, streamed or not, tried again until they succeed."""

    def __init__(self, setup: Setup, http: httpx.AsyncClient, number: int) -> None:
        self._http = http
        self._setup = setup
        self.word = f"word{number}"
        self._random = random.Random(number)
        self.replies: list[str] = []
        self.session = None

    async def run(self) -> None:
        self.session = await self._setup.open()
        messages = [{"role": "user", "content": f"{self.word} begins"}]
        for turn in range(TURNS):
            reply = None
            while reply is None:
                reply = await self._ask(messages)
            assert reply.split()[0] == self.word, "a reply of another session"
            self.replies.append(reply)
            messages.append({"role": "assistant", "content": reply})
            messages.append({"role": "user", "content": f"turn {turn}"})
        await self._setup.gateway.close(self.session.id)

    async def _ask(self, messages: list[dict]) -> str | None:
        body = {"model": "m", "messages": messages, "stream": self._random.random() < 0.5}
        url = f"{self._setup.base(self.session)}/chat/completions"
        if not body["stream"]:
            answer = await self._http.post(url, json=body)
            if not answer.is_success:
                return None
            return answer.json()["choices"][0]["message"]["content"]
        with suppress(httpx.HTTPError):
            async with self._http.stream("POST", url, json=body) as answer:
                return await self._read(answer)
        return None

    async def _read(self, answer: httpx.Response) -> str | None:
        leaves_after = self._random.randrange(1, 8) if self._random.random() < HANGS_UP else None
        text, events = "", 0
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                return text
            if line.startswith("data: ") and "choices" in (event := json.loads(line[6:])):
                text += event["choices"][0]["delta"].get("content") or ""
                events += 1
            if events == leaves_after:
                return None
        return None


async def play_all(setup: Setup, sessions: int = SESSIONS) -> list[Client]:
    """Run all clients to their end, so many at once."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def within(client: Client) -> None:
        async with gate:
            await client.run()

    async with setup.http() as http:
        clients = [Client(setup, http, number) for number in range(sessions)]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(within(client))
    return clients


def descriptors() -> int:
    """Count the open files of this process."""
    return len(os.listdir("/proc/self/fd"))


async def trouble(servers, gateway, engine, folder):
    """Kill a server, start it anew on base weights, and now and then update all."""
    chance = random.Random(0)
    for version in range(1, 10_000):
        server = chance.choice(servers)
        await server.kill()
        await asyncio.sleep(chance.uniform(0.0, 0.2))
        await server.start()
        await asyncio.sleep(chance.uniform(0.1, 0.4))
        if version % UPDATE_EVERY == 0:
            await gateway.pause()
            await engine.pause()
            await engine.load_weights(version, weights(folder, version))
            await engine.resume()
            await gateway.resume()


async def soak(setup, servers, folder, *, sessions=SESSIONS):
    """Run clients while servers are killed and weights change."""
    making = asyncio.create_task(trouble(servers, setup.gateway, setup.engine, folder))
    try:
        return await play_all(setup, sessions)
    finally:
        making.cancel()
        await asyncio.wait([making])
        assert making.cancelled(), making.exception()


def assert_sampled(call):
    """Every token is the reply's next, with the logprob of the weights it is stamped with.

    A server that was started anew tells only at a reply's end that it has lost its weights: the
    call is then broken off, and what it sampled is never trained on for that reason.
    """
    sampled, whole = call.sampled_ids.tolist(), reply_to(call.prompt_ids.tolist())
    assert sampled == (whole if call.finish_reason == "stop" else whole[: len(sampled)])
    if call.finish_reason == "error":
        assert drop_reason(call, BuildPolicy()) == "error"
        return
    stamped = zip(call.sampled_ids, call.weight_versions, strict=True)
    told = [logprob(int(token), int(version)) for token, version in stamped]
    np.testing.assert_allclose(call.logprobs, told, rtol=1e-5)
