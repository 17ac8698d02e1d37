"""Sessions through the gateway while its engine's servers are killed and weights change."""

import asyncio
import gc
import os
import random
from collections import Counter

import httpx
import numpy as np
import pytest
from gateway_support import ByteRenderer, Setup
from replica_process import replicas, weights
from vllm_replica import logprob, reply_to

from polar.engines.settings import VllmSettings
from polar.engines.vllm import VllmEngine
from polar.gateway import Gateway, GatewaySettings
from polar.store import SqliteJournal
from polar.trajectory import build, check

pytestmark = pytest.mark.timeout(300)

SESSIONS = 300
AT_ONCE = 64
TURNS = 3
UPDATE_EVERY = 4
SETTINGS = {
    "check_interval_s": 0.2,
    "check_timeout_s": 5.0,
    "connect_timeout_s": 5.0,
    "tries": 50,
}


async def play(setup: Setup, http: httpx.AsyncClient, number: int):
    """Play a session: each reply must repeat the session's own word."""
    session = await setup.open()
    url = f"/s/{session.key}/v1/chat/completions"
    messages = [{"role": "user", "content": f"word{number} begins"}]
    for turn in range(TURNS):
        answer = await http.post(url, json={"model": "m", "messages": messages})
        assert answer.status_code == 200, answer.text
        reply = answer.json()["choices"][0]["message"]["content"]
        assert reply.startswith(f"word{number} answers"), reply
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": f"turn {turn}"})
    await setup.gateway.close(session.id)
    return session


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
            gateway.pause()
            await engine.pause()
            await engine.load_weights(version, weights(folder, version))
            await engine.resume()
            gateway.resume()


async def soak(setup, servers, engine, folder):
    gate = asyncio.Semaphore(AT_ONCE)

    async def within(http, number):
        async with gate:
            return await play(setup, http, number)

    making = asyncio.create_task(trouble(servers, setup.gateway, engine, folder))
    try:
        async with setup.http() as http:
            played = (within(http, number) for number in range(SESSIONS))
            return await asyncio.gather(*played)
    finally:
        making.cancel()
        await asyncio.wait([making])
        assert making.cancelled(), making.exception()


async def test_no_call_is_lost_doubled_or_mixed_when_servers_are_killed(tmp_path):
    tasks_before, open_before = len(asyncio.all_tasks()), _descriptors()
    async with replicas(3, chunk_s=0.005) as servers:
        urls = tuple(each.url for each in servers)
        engine = VllmEngine(VllmSettings(urls=urls, **SETTINGS))
        async with SqliteJournal.open(tmp_path / "journal.db") as journal:
            gateway = Gateway(engine, ByteRenderer(), journal, GatewaySettings())
            async with gateway.serve() as address:
                setup = Setup(gateway, engine, journal, address.url)
                sessions = await soak(setup, servers, engine, tmp_path / "weights")
            status = engine.status()
            assert sum(each.streams for each in status) == 0
            await engine.aclose()
            seen: Counter[str] = Counter()
            for session in sessions:
                calls = await journal.calls(session.id)
                seen.update(call.id for call in calls)
                assert [call.finish_reason for call in calls] == ["stop"] * TURNS
                for call in calls:
                    assert call.sampled_ids.tolist() == reply_to(call.prompt_ids.tolist())
                    stamped = zip(call.sampled_ids, call.weight_versions, strict=True)
                    told = [logprob(int(token), int(version)) for token, version in stamped]
                    np.testing.assert_allclose(call.logprobs, told, rtol=1e-5)
                check(calls, build(calls))
    assert set(seen.values()) == {1}
    assert len(seen) == SESSIONS * TURNS
    assert sum(each.losses for each in status) > 0
    assert sum(each.moved for each in status) > 0
    gc.collect()
    assert len(asyncio.all_tasks()) == tasks_before
    assert _descriptors() <= open_before + 2


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
