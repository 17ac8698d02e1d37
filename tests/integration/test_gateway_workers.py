"""A gateway of several processes: real workers, a real journal, servers that speak vLLM's wire."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest
import workers_support
from replica_process import replicas, weights
from rollout_support import is_alive
from soak_support import assert_sampled, soak
from workers_support import IMPORTED, workers_serving

from polar.cli.gateway_worker import spawn_worker
from polar.errors import ConfigError, GatewayError
from polar.gateway import SessionPolicy
from polar.gateway.control import serve_control
from polar.gateway.settings import ControlSettings
from polar.trajectory import build, check

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", IMPORTED)


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


async def test_sessions_are_spread_over_workers_and_each_call_is_on_record_once(tmp_path):
    async with (
        replicas(1) as (server,),
        workers_serving(tmp_path, [server.url]) as setup,
        setup.http() as http,
    ):
        sessions = [await setup.open() for _ in range(6)]
        assert sorted(map(list(setup.urls.values()).count, set(setup.urls.values()))) == [3, 3]

        async def talk(session):
            first = await setup.ask(session, f"{session.id} begins", http=http)
            again = await setup.ask(session, f"{session.id} begins", first, "more", http=http)
            assert first.split()[0] == again.split()[0] == session.id

        await asyncio.gather(*map(talk, sessions))
        usages = [await setup.gateway.close(session.id) for session in sessions]
        figures = await setup.gateway.figures()
        calls = await setup.calls()

    assert [usage.calls for usage in usages] == [2] * 6
    assert figures.totals["calls"] == len({call.id for call in calls}) == len(calls) == 12
    assert all(call.parent_id for call in calls if call.index == 1)
    for call in calls:
        assert_sampled(call)
    tapes = await asyncio.to_thread(setup.folder.tapes)
    assert [tape.name for tape in tapes] == ["engine.tape.1", "engine.tape.2"]
    await setup.check_tapes(calls)


async def test_a_key_is_known_to_its_own_worker_alone_and_to_none_after_the_end(tmp_path):
    async with (
        replicas(1) as (server,),
        workers_serving(tmp_path, [server.url]) as setup,
        setup.http() as http,
    ):
        one, two = await setup.open(), await setup.open()
        with pytest.raises(GatewayError, match="open already"):
            await setup.gateway.open(one, SessionPolicy())
        setup.urls[one.id], setup.urls[two.id] = setup.urls[two.id], setup.urls[one.id]
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            await setup.ask(one, "hello", http=http)
        setup.urls[one.id], setup.urls[two.id] = setup.urls[two.id], setup.urls[one.id]
        await setup.gateway.close(one.id)
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            await setup.ask(one, "hello", http=http)
        assert await setup.ask(two, "hello", http=http)


async def test_a_stale_attempt_is_fenced_off_at_the_owners_journal(tmp_path):
    async with (
        replicas(1) as (server,),
        workers_serving(tmp_path, [server.url]) as setup,
        setup.http() as http,
    ):
        session = await setup.open()
        newer = type(session)(session.id, session.task_id, "g", 1, "another-key")
        await setup.journal.open_session(newer, phase="train", step=0)
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            await setup.ask(session, "hello", http=http)
        assert await setup.journal.calls(session.id) == []
        assert setup.gateway.failure is None


async def test_the_worker_that_dies_is_replaced_and_only_its_sessions_are_lost(tmp_path):
    async with (
        replicas(1, chunk_s=0.01) as (server,),
        workers_serving(tmp_path, [server.url]) as setup,
        setup.http() as http,
    ):
        sessions = [await setup.open() for _ in range(4)]
        for session in sessions:
            await setup.ask(session, f"{session.id} begins", http=http)
        dead = [each for each in sessions if setup.urls[each.id] == setup.urls[sessions[0].id]]
        alive = [each for each in sessions if each not in dead]
        losses = [asyncio.create_task(setup.gateway.lost(each.id)) for each in sessions]

        stream = setup.stream(dead[0], "long goes on", http=http)
        await anext(stream)
        before = len(setup.pids)
        setup.kill(setup.at.index(setup.urls[dead[0].id]))
        with pytest.raises(httpx.HTTPError):
            async for _ in stream:
                pass

        async with asyncio.timeout(60):
            reasons = [await losses[sessions.index(each)] for each in dead]
        assert all("has ended (exit -9)" in reason.what for reason in reasons)
        for session in alive:
            assert await setup.ask(session, f"{session.id} begins", "reply", "x", http=http)
        fresh = await setup.open(at=setup.urls[dead[0].id])
        assert len(setup.pids) == before + 1
        await setup.ask(fresh, f"{fresh.id} begins", http=http)
        assert [(await setup.gateway.close(each.id)).calls for each in dead] == [1, 1]
        assert [(await setup.gateway.close(each.id)).calls for each in alive] == [2, 2]
        calls = await setup.calls()
        for task in losses:
            task.cancel()
    for call in calls:
        assert_sampled(call)
    await setup.check_tapes(calls)


async def test_versions_are_exact_for_replies_that_span_updates_and_a_lost_server(tmp_path):
    async with (
        replicas(2, chunk_s=0.02) as servers,
        workers_serving(tmp_path / "run", [each.url for each in servers]) as setup,
        setup.http() as http,
    ):
        sessions = [await setup.open() for _ in range(8)]
        over = asyncio.Event()

        async def talk(session):
            turn = 0
            while not over.is_set():
                turn += 1
                await setup.ask(session, f"{session.id} at turn {turn}", http=http)

        talking = [asyncio.create_task(talk(session)) for session in sessions]
        for version in range(1, 5):
            await asyncio.sleep(0.3)
            if version == 3:
                await servers[0].kill()
                await servers[0].start()  # with the weights of the start
            await setup.gateway.pause()
            await setup.engine.pause()
            await setup.engine.load_weights(version, weights(tmp_path / "weights", version))
            await setup.engine.resume()
            await setup.gateway.resume()
        await asyncio.sleep(0.5)
        over.set()
        await asyncio.gather(*talking)
        setup.kill(0)
        await until(lambda: len(setup.pids) == 3)
        late = [await setup.open() for _ in range(2)]
        for session in late:
            await setup.ask(session, f"{session.id} is late", http=http)
        calls = await setup.calls()
    spans = {tuple(sorted(set(call.weight_versions.tolist()))) for call in calls}
    assert {0, 4} <= {version for span in spans for version in span}
    assert any(len(span) > 1 for span in spans)
    for call in calls:
        assert_sampled(call)
        if call.session_id in {each.id for each in late}:
            assert set(call.weight_versions.tolist()) == {4}
    await setup.check_tapes(calls)


async def test_new_calls_wait_for_every_holder_also_at_a_worker_that_was_started_meanwhile(
    tmp_path,
):
    async with (
        replicas(1) as (server,),
        workers_serving(tmp_path, [server.url], workers=1) as setup,
        setup.http() as http,
    ):
        await setup.gateway.pause()
        await setup.gateway.pause("other")
        setup.kill(0)
        await until(lambda: len(setup.pids) == 2)
        session = await setup.open()
        asking = asyncio.create_task(setup.ask(session, "hello", http=http))
        await setup.gateway.resume()
        assert setup.gateway.holders == {"other"}
        assert (await setup.gateway.usage_of(session.id)).calls == 0
        assert not asking.done()
        await setup.gateway.resume("other")
        assert await asking
        assert setup.gateway.paused_s() > 0


async def test_the_control_api_watches_and_uses_all_workers(tmp_path):
    control = ControlSettings(token_file=tmp_path / "token")
    async with (
        replicas(1) as (server,),
        workers_serving(tmp_path / "run", [server.url]) as setup,
        serve_control(setup.gateway, setup.journal, control) as address,
        setup.http() as http,
    ):
        http.base_url = address.url
        http.headers["Authorization"] = f"Bearer {(tmp_path / 'token').read_text().strip()}"
        opened = [(await http.post("/sessions")).json() for _ in range(2)]
        assert len({each["base_url"].split("/s/")[0] for each in opened}) == 2
        for each in opened:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi there"}]}
            url = f"{each['base_url']}/v1/chat/completions"
            (await http.post(url, json=body)).raise_for_status()
        told = (await http.get("/metrics")).json()
        assert (told["open_sessions"], told["totals"]["calls"]) == (2, 2)
        held = (await http.post("/pause", json={"holder": "me"})).json()
        assert held == {"paused": True, "holders": ["control:me"]}
        await http.post("/resume", json={"holder": "me"})
        closed = (await http.delete(f"/sessions/{opened[0]['id']}")).json()
        assert (closed["state"], closed["usage"]["calls"]) == ("closed", 1)


PROGRAM = """
import asyncio, sys
from pathlib import Path
from workers_support import workers_serving

async def main():
    async with workers_serving(Path(sys.argv[1]), [sys.argv[2]]) as setup, setup.http() as http:
        session = await setup.open()
        await setup.ask(session, "hello there", http=http)
        print(*setup.pids, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_workers_end_with_a_killed_owner_and_what_was_acknowledged_is_on_record(tmp_path):
    async with replicas(1) as (server,):
        owner = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, str(tmp_path), server.url),
            stdout=asyncio.subprocess.PIPE,
        )
        pids = [int(pid) for pid in (await owner.stdout.readline()).split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        owner.kill()
        await owner.wait()
        await until(lambda: not any(map(is_running, pids)))

        async with (
            workers_serving(tmp_path, [server.url], workers=1) as setup,
            setup.http() as http,
        ):
            (record,) = await setup.journal.sessions()
            setup.sessions.append(record.session)
            await setup.ask(await setup.open(), "again hello", http=http)
            calls = await setup.calls()
    assert len(calls) == 2
    await setup.check_tapes(calls)


def is_running(pid: int) -> bool:
    """Tell whether a process has not ended: it may wait for nobody to take note of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_worker_that_is_stuck_is_killed_and_nobody_waits_for_ever(tmp_path):
    async with (
        replicas(1) as (server,),
        workers_serving(tmp_path, [server.url], workers=1, answer_s=1.0) as setup,
        setup.http() as http,
    ):
        session = await setup.open()
        os.kill(setup.pids[0], signal.SIGSTOP)
        await setup.gateway.pause()
        await setup.gateway.resume()
        assert "has ended" in (await setup.gateway.lost(session.id)).what
        again = await setup.open()
        assert await setup.ask(again, "hello", http=http)


async def test_the_sessions_of_a_worker_that_is_stuck_are_lost_though_nobody_asks_it(tmp_path):
    async with (
        replicas(1) as (server,),
        workers_serving(tmp_path, [server.url], workers=1, answer_s=1.0) as setup,
    ):
        session = await setup.open()
        os.kill(setup.pids[0], signal.SIGSTOP)
        async with asyncio.timeout(60):
            assert "has ended (exit -9)" in (await setup.gateway.lost(session.id)).what


async def test_closing_a_session_does_not_wait_for_ever_for_a_worker_that_is_stuck(tmp_path):
    async with (
        replicas(1) as (server,),
        workers_serving(tmp_path, [server.url], workers=1, answer_s=1.0) as setup,
        setup.http() as http,
    ):
        session = await setup.open()
        await setup.ask(session, "hello", http=http)
        os.kill(setup.pids[0], signal.SIGSTOP)
        async with asyncio.timeout(60):
            assert (await setup.gateway.close(session.id)).calls == 1


async def test_a_session_whose_opening_was_broken_off_can_be_opened_again(tmp_path):
    async with (
        replicas(1) as (server,),
        workers_serving(tmp_path, [server.url], workers=1) as setup,
        setup.http() as http,
    ):
        session = await setup.open()
        await setup.gateway.close(session.id)
        opening = asyncio.create_task(setup.gateway.open(session, SessionPolicy()))
        await asyncio.sleep(0)  # it has been asked for
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            await setup.ask(session, "hello", http=http)
        await setup.gateway.open(session, SessionPolicy())
        assert await setup.ask(session, "hello", http=http)


async def test_what_cannot_be_sent_to_a_worker_is_said(tmp_path):
    async with (
        replicas(1) as (server,),
        workers_serving(tmp_path, [server.url], workers=1) as setup,
    ):
        with pytest.raises(GatewayError, match="cannot be sent"):
            await setup.open(SessionPolicy(kind_of=lambda chat, headers: "main"))


async def test_a_worker_that_cannot_start_ends_the_start_and_says_why(tmp_path):
    async with replicas(1) as (server,):
        with pytest.raises(ConfigError, match="nowhere"):
            async with workers_serving(
                tmp_path, [server.url], settings={"scorer": {"python": "nowhere:score"}}
            ):
                pass


async def test_a_worker_that_is_killed_while_it_starts_is_named(tmp_path, monkeypatch):
    async def spawn(number, link, listener):
        process = await spawn_worker(number, link, listener)
        if number == 2:
            process.kill()
        return process

    monkeypatch.setattr(workers_support, "spawn_worker", spawn)
    async with replicas(1) as (server,):
        with pytest.raises(GatewayError, match=r"worker 2 .* ended while it started \(exit -9\)"):
            async with workers_serving(tmp_path, [server.url]):
                pass


async def test_a_soak_on_two_workers_loses_doubles_and_mixes_nothing(tmp_path):
    async with replicas(2, chunk_s=0.005) as servers:
        urls = [each.url for each in servers]
        async with workers_serving(tmp_path / "run", urls) as setup:
            clients = await soak(setup, servers, tmp_path / "weights", sessions=100)
            calls = await setup.calls()
        assert len({call.id for call in calls}) == len(calls)
        assert {call.finish_reason for call in calls} <= {"stop", "abandoned", "error"}
        for call in calls:
            assert_sampled(call)
        for client in clients:
            mine = [call for call in calls if call.session_id == client.session.id]
            said = [call.reply.content for call in mine if call.finish_reason == "stop"]
            assert set(client.replies) <= set(said)
            assert all(reply.split()[0] == client.word for reply in said)
            check(mine, build(mine))
        await setup.check_tapes(calls)
