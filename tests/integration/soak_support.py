"""Clients of a soak: conversations that now and then hang up in the middle of a reply."""

import asyncio
import json
import os
import random
from contextlib import suppress

import httpx
from gateway_support import Setup

__all__ = ["AT_ONCE", "SESSIONS", "TURNS", "Client", "descriptors", "play_all"]

SESSIONS = 1000
AT_ONCE = 64
TURNS = 3
HANGS_UP = 0.1


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
        url = f"/s/{self.session.key}/v1/chat/completions"
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


async def play_all(setup: Setup) -> list[Client]:
    """Run all clients to their end, so many at once."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def within(client: Client) -> None:
        async with gate:
            await client.run()

    async with setup.http() as http:
        clients = [Client(setup, http, number) for number in range(SESSIONS)]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(within(client))
    return clients


def descriptors() -> int:
    """Count the open files of this process."""
    return len(os.listdir("/proc/self/fd"))
