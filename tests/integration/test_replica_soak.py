"""A thousand sessions while servers are killed, clients hang up and weights change."""

import asyncio
import gc
from collections import Counter

import pytest
from gateway_support import ByteRenderer, Setup
from replica_process import replicas
from soak_support import SESSIONS, TURNS, assert_sampled, descriptors, soak

from polar.engines.settings import VllmSettings
from polar.engines.vllm import VllmEngine
from polar.gateway import Gateway, GatewaySettings
from polar.store import SqliteJournal
from polar.trajectory import build, check

pytestmark = pytest.mark.timeout(300)

SETTINGS = {
    "check_interval_s": 0.2,
    "check_timeout_s": 5.0,
    "connect_timeout_s": 5.0,
    "tries": 50,
}


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
                clients = await soak(setup, servers, tmp_path / "weights")
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
    # A call whose server was started anew behind its back is broken off: see `assert_sampled`.
    assert set(endings) - {"error"} == {"stop", "abandoned"}
    assert endings["stop"] >= SESSIONS * TURNS
    assert endings["abandoned"] > 0
    assert sum(each.losses for each in status) > 0
    assert sum(each.moved for each in status) > 0
    gc.collect()
    assert len(asyncio.all_tasks()) == tasks_before
    assert descriptors() <= open_before + 2
