"""A thousand sessions while servers are killed, clients hang up and weights change."""

import asyncio
import gc
import random
from collections import Counter

import numpy as np
import pytest
from gateway_support import ByteRenderer, Setup
from replica_process import replicas, weights
from soak_support import SESSIONS, TURNS, descriptors, play_all
from vllm_replica import logprob, reply_to

from polar.engines.settings import VllmSettings
from polar.engines.vllm import VllmEngine
from polar.gateway import Gateway, GatewaySettings
from polar.store import SqliteJournal
from polar.trajectory import BuildPolicy, build, check
from polar.trajectory.builders import drop_reason

pytestmark = pytest.mark.timeout(300)

UPDATE_EVERY = 4
SETTINGS = {
    "check_interval_s": 0.2,
    "check_timeout_s": 5.0,
    "connect_timeout_s": 5.0,
    "tries": 50,
}


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


async def soak(setup, servers, engine, folder):
    making = asyncio.create_task(trouble(servers, setup.gateway, engine, folder))
    try:
        return await play_all(setup)
    finally:
        making.cancel()
        await asyncio.wait([making])
        assert making.cancelled(), making.exception()


async def test_no_call_is_lost_doubled_or_mixed_when_servers_are_killed_and_clients_leave(tmp_path):
    tasks_before, open_before = len(asyncio.all_tasks()), descriptors()
    async with replicas(3, chunk_s=0.005) as servers:
        urls = tuple(each.url for each in servers)
        engine = VllmEngine(VllmSettings(urls=urls, **SETTINGS))
        async with SqliteJournal.open(tmp_path / "journal.db") as journal:
            settings = GatewaySettings(disconnect_grace_s=0.0)
            gateway = Gateway(engine, ByteRenderer(), journal, settings)
            async with gateway.serve() as address:
                setup = Setup(gateway, engine, journal, address.url)
                clients = await soak(setup, servers, engine, tmp_path / "weights")
            status = engine.status()
            assert sum(each.streams for each in status) == 0
            await engine.aclose()
            seen: Counter[str] = Counter()
            endings: Counter[str] = Counter()
            for client in clients:
                calls = await journal.calls(client.session.id)
                seen.update(call.id for call in calls)
                endings.update(call.finish_reason for call in calls)
                for call in calls:
                    assert_sampled(call)
                said = [call.reply.content for call in calls if call.finish_reason == "stop"]
                assert set(client.replies) <= set(said)
                assert all(reply.split()[0] == client.word for reply in said)
                check(calls, build(calls))
    assert set(seen.values()) == {1}
    assert set(endings) == {"stop", "abandoned"}
    assert endings["stop"] >= SESSIONS * TURNS
    assert endings["abandoned"] > 0
    assert sum(each.losses for each in status) > 0
    assert sum(each.moved for each in status) > 0
    gc.collect()
    assert len(asyncio.all_tasks()) == tasks_before
    assert descriptors() <= open_before + 2


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
