"""A thousand sessions, 64 at once, while engines fail and clients hang up: nothing is lost."""

import asyncio
import gc
import json
import math
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest
from gateway_support import END, START, ByteRenderer, Setup

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.errors import EngineError
from polar.gateway import Gateway, GatewaySettings
from polar.store import SqliteJournal
from polar.trajectory import TapeRecord, build, check, check_tape
from polar.types import CallId

pytestmark = pytest.mark.timeout(600)

SESSIONS = 1000
AT_ONCE = 64
TURNS = 3
FAILS, HANGS_UP, SLOW = 0.08, 0.1, 0.2


class FailingEngine:
    """Answers with the first word of the conversation, and now and then dies on the way."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.tape: dict[str, tuple[tuple[int, ...], list[int], list[float]]] = {}
        self.open = 0

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        prompt = bytes(token for token in request.prompt_ids if token < START).decode()
        word = prompt.split("user\n", 1)[1].split()[0]
        reply = [*f"{word} {len(prompt)} {request.id[-6:]}".encode(), END]
        fails_at = self._random.randrange(len(reply)) if self._random.random() < FAILS else None
        slow = self._random.random() < SLOW
        ids: list[int] = []
        logprobs: list[float] = []
        self.tape[request.id] = (tuple(request.prompt_ids), ids, logprobs)
        self.open += 1
        try:
            for number, token in enumerate(reply):
                if number == fails_at:
                    raise EngineError("the replica was killed")
                if number % 4 == 0:
                    await asyncio.sleep(0.05 if slow and number else 0)
                ids.append(token)
                logprobs.append(-math.log(2 + token))
                last = number == len(reply) - 1
                yield Chunk((token,), (logprobs[-1],), 0, "stop" if last else None)
        finally:
            self.open -= 1

    async def probe(self) -> Capabilities:
        return Capabilities("failing", 100_000, True, True, True)


class Client:
    """One session's harness: three turns, streamed or not, tried again until they succeed."""

    def __init__(self, setup: Setup, http: httpx.AsyncClient, number: int) -> None:
        self._http = http
        self._setup = setup
        self._word = f"word{number}"
        self._random = random.Random(number)
        self.replies: list[str] = []
        self.session = None

    async def run(self) -> None:
        self.session = await self._setup.open()
        messages = [{"role": "user", "content": f"{self._word} begins"}]
        for turn in range(TURNS):
            reply = None
            while reply is None:
                reply = await self._ask(messages)
            assert reply.split()[0] == self._word, "a reply of another session"
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


async def test_no_call_is_lost_doubled_or_mixed_up_and_nothing_leaks(tmp_path):
    engine = FailingEngine(seed=0)
    settings = GatewaySettings(disconnect_grace_s=0.0)
    tasks_before, open_before = len(asyncio.all_tasks()), _descriptors()
    async with SqliteJournal.open(tmp_path / "journal.db") as journal:
        gateway = Gateway(engine, ByteRenderer(), journal, settings)
        async with gateway.serve() as address:
            setup = Setup(gateway, engine, journal, address.url)
            async with setup.http() as http:
                clients = [Client(setup, http, number) for number in range(SESSIONS)]
                gate = asyncio.Semaphore(AT_ONCE)

                async def within(client: Client) -> None:
                    async with gate:
                        await client.run()

                async with asyncio.TaskGroup() as group:
                    for client in clients:
                        group.create_task(within(client))
        seen: Counter[CallId] = Counter()
        endings: Counter[str] = Counter()
        for client in clients:
            calls = await journal.calls(client.session.id)
            seen.update(call.id for call in calls)
            endings.update(call.finish_reason for call in calls)
            check_tape(calls, [TapeRecord.of(*engine.tape[call.id]) for call in calls])
            check(calls, build(calls))
            said = [call.reply.content for call in calls if call.finish_reason == "stop"]
            assert set(client.replies) <= set(said)
            assert all(reply.split()[0] == client._word for reply in said)
    assert engine.open == 0
    assert set(seen.values()) == {1}
    assert {call_id for call_id, (_, ids, _) in engine.tape.items() if ids} <= set(seen)
    assert endings["stop"] >= SESSIONS * TURNS
    assert endings["error"] > 0
    assert endings["abandoned"] > 0
    gc.collect()
    assert len(asyncio.all_tasks()) == tasks_before
    assert _descriptors() <= open_before + 2


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
