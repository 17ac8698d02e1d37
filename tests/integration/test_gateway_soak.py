"""A thousand sessions, 64 at once, while engines fail and clients hang up: nothing is lost."""

import asyncio
import gc
import math
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from gateway_support import END, START, ByteRenderer, Setup
from soak_support import SESSIONS, TURNS, descriptors, play_all

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.errors import EngineError
from polar.gateway import Gateway, GatewaySettings
from polar.store import SqliteJournal
from polar.trajectory import TapeRecord, build, check, check_tape
from polar.types import CallId

pytestmark = pytest.mark.timeout(600)

FAILS, SLOW = 0.08, 0.2


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


async def test_no_call_is_lost_doubled_or_mixed_up_and_nothing_leaks(tmp_path):
    engine = FailingEngine(seed=0)
    settings = GatewaySettings(disconnect_grace_s=0.0)
    tasks_before, open_before = len(asyncio.all_tasks()), descriptors()
    async with SqliteJournal.open(tmp_path / "journal.db") as journal:
        gateway = Gateway(engine, ByteRenderer(), journal, settings)
        async with gateway.serve() as address:
            setup = Setup(gateway, engine, journal, address.url)
            clients = await play_all(setup)
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
            assert all(reply.split()[0] == client.word for reply in said)
    assert engine.open == 0
    assert set(seen.values()) == {1}
    assert {call_id for call_id, (_, ids, _) in engine.tape.items() if ids} <= set(seen)
    assert endings["stop"] >= SESSIONS * TURNS
    assert endings["error"] > 0
    assert endings["abandoned"] > 0
    gc.collect()
    assert len(asyncio.all_tasks()) == tasks_before
    assert descriptors() <= open_before + 2
