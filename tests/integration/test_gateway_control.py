"""The control API: sessions from outside, holders of a pause, and a port of its own."""

import asyncio
import logging
import stat
from contextlib import asynccontextmanager

import httpx
import openai
import pytest
from gateway_support import Hold, ask, serving

from polar.errors import ConfigError, JournalError
from polar.gateway import serve_control
from polar.gateway.control_token import load_token
from polar.gateway.settings import ControlSettings
from polar.types import Cancelled, Session, SessionId, TaskId

TOKEN = "a-token-of-the-owner-alone"
KEY = "the-key-that-a-caller-chose"


@asynccontextmanager
async def controlled(tmp_path, *scripts, **serving_with):
    """Serve both ports, and a client that bears the token."""
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(TOKEN)
    settings = ControlSettings(token_file=file)
    async with (
        serving(tmp_path, *scripts, **serving_with) as setup,
        serve_control(setup.gateway, setup.journal, settings) as address,
        httpx.AsyncClient(
            base_url=address.url,
            headers={"authorization": f"Bearer {TOKEN}"},
            trust_env=False,
            verify=False,
        ) as control,
    ):
        yield setup, control


def client(opened) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{opened['base_url']}/v1",
        api_key=opened["key"],
        max_retries=0,
        http_client=httpx.AsyncClient(trust_env=False, verify=False),
    )


async def test_a_session_is_opened_used_looked_at_and_closed(tmp_path):
    async with controlled(tmp_path, "hello") as (setup, control):
        answer = await control.post("/sessions", json={"max_calls": 1, "task_id": "mine"})
        assert answer.status_code == 201
        opened = answer.json()
        async with client(opened) as sdk:
            await sdk.chat.completions.create(**ask("hi"))
            with pytest.raises(openai.BadRequestError, match="call limit"):
                await sdk.chat.completions.create(**ask("more"))
            shown = (await control.get(f"/sessions/{opened['id']}")).json()
            assert (shown["state"], shown["usage"]["calls"]) == ("open", 1)
            assert (await control.get("/sessions")).json() == {"sessions": [shown]}
            (call,) = (await control.get(f"/sessions/{opened['id']}/calls")).json()["calls"]
            assert (call["reply"]["content"], call["messages"][0]["content"]) == ("hello", "hi")
            closed = (await control.delete(f"/sessions/{opened['id']}")).json()
            assert (closed["state"], closed["usage"]["sampled_tokens"]) == ("closed", 6)
            with pytest.raises(openai.AuthenticationError):
                await sdk.chat.completions.create(**ask("again"))
        assert (await control.get(f"/sessions/{opened['id']}")).json() == closed
        assert (await control.delete(f"/sessions/{opened['id']}")).status_code == 409
        (record,) = await setup.journal.sessions()
        assert (record.phase, record.state) == ("external", "cancelled")
        assert isinstance(record.outcome, Cancelled)


async def test_a_caller_may_choose_the_key_but_not_one_in_use_or_one_that_is_guessed(tmp_path):
    async with controlled(tmp_path, "yes") as (_, control):
        opened = (await control.post("/sessions", json={"key": KEY})).json()
        assert opened["key"] == KEY
        assert (await control.post("/sessions", json={"key": KEY})).status_code == 409
        for key in ("short", "with/a/slash/in/it", "ä" * 20, ""):
            assert (await control.post("/sessions", json={"key": key})).status_code == 400
        answer = await control.post("/sessions", json={"max_call": 3})
        assert answer.status_code == 400
        assert "Did you mean `max_calls`" in answer.json()["error"]["message"]
        async with client(opened) as sdk:
            reply = await sdk.chat.completions.create(**ask("hi"))
        assert reply.choices[0].message.content == "yes"


@pytest.mark.parametrize("whole_calls", [False, True])
async def test_a_session_can_be_opened_for_whole_calls_only(tmp_path, whole_calls):
    text = '<tool_call>{"name": "bash", "arguments": {"command": "l'
    async with controlled(tmp_path, text) as (_, control):
        opened = (await control.post("/sessions", json={"whole_calls": whole_calls})).json()
        async with client(opened) as sdk:
            reply = await sdk.chat.completions.create(**ask("hi", max_tokens=len(text)))
    message = reply.choices[0].message
    assert bool(message.tool_calls) is not whole_calls
    assert message.content == (text if whole_calls else None)


async def test_sessions_of_a_run_cannot_be_seen_or_closed(tmp_path):
    async with controlled(tmp_path, "yes") as (setup, control):
        session = await setup.open()
        for method, path in (("GET", ""), ("GET", "/calls"), ("DELETE", "")):
            answer = await control.request(method, f"/sessions/{session.id}{path}")
            assert answer.status_code == 404
        async with setup.client(session) as sdk:
            await sdk.chat.completions.create(**ask("hi"))
        assert (await control.get("/sessions")).json() == {"sessions": []}


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer guess", f"Basic {TOKEN}", "Bearer ä"])
async def test_whoever_has_not_the_token_is_turned_away_from_everything(tmp_path, header):
    async with controlled(tmp_path) as (setup, control):
        session = await setup.open()
        headers = {"authorization": "" if header is None else header.encode()}
        for method, path in (
            ("GET", "/health"),
            ("GET", "/metrics"),
            ("POST", "/sessions"),
            ("POST", "/pause"),
            ("GET", "/nothing"),
            ("DELETE", f"/sessions/{session.id}"),
        ):
            answer = await control.request(method, path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "Unauthorized"
            assert "token file" in answer.json()["error"]["fix"]
        key = {"authorization": f"Bearer {session.key}"}
        assert (await control.get("/health", headers=key)).status_code == 401


async def test_the_harnesses_port_has_no_control_and_does_not_take_the_token(tmp_path):
    async with controlled(tmp_path) as (setup, _), setup.http() as http:
        session = await setup.open()
        for headers in ({"authorization": f"Bearer {TOKEN}"}, {"x-api-key": session.key}):
            for method, path in (("POST", "/sessions"), ("GET", "/health"), ("POST", "/pause")):
                for prefix in ("", f"/s/{session.key}"):
                    answer = await http.request(method, prefix + path, headers=headers)
                    assert answer.status_code == 404
        answer = await http.get("/v1/models", headers={"authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 401
        assert not setup.gateway.holders


async def test_calls_wait_until_the_last_holder_lets_go(tmp_path):
    async with controlled(tmp_path, "now") as (setup, control):
        session = await setup.open()
        await setup.gateway.pause()
        for holder in ("a", "b", "a"):
            answer = await control.post("/pause", json={"holder": holder})
        assert answer.json() == {"paused": True, "holders": ["control:a", "control:b", "run"]}
        async with setup.client(session) as sdk:
            asked = asyncio.create_task(sdk.chat.completions.create(**ask("hi")))
            await setup.gateway.resume()
            await control.post("/resume", json={"holder": "a"})
            answer = await control.post("/resume", json={"holder": "run"})
            assert answer.json() == {"paused": True, "holders": ["control:b"]}
            assert setup.engine.requests == []
            answer = await control.post("/resume", json={"holder": "b"})
            assert answer.json() == {"paused": False, "holders": []}
            assert (await asked).choices[0].message.content == "now"
        assert (await control.post("/pause", json={})).status_code == 400


async def test_health_and_metrics_tell_how_things_are(tmp_path):
    async with controlled(tmp_path, "hello") as (setup, control):
        assert (await control.get("/health")).json() == {"status": "ok", "failure": None}
        first, _ = await setup.open(), await setup.open()
        async with setup.client(first) as sdk:
            await sdk.chat.completions.create(**ask("hi"))
        await setup.gateway.close(first.id)
        told = (await control.get("/metrics")).json()
        assert (told["open_sessions"], told["paused"], told["cut_connections"]) == (1, False, {})
        assert (told["totals"]["calls"], told["totals"]["sampled_tokens"]) == (1, 6)
        setup.gateway._fail(JournalError("the disk is full"))
        answer = await control.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")
        assert "disk is full" in answer.json()["failure"]


async def test_a_session_that_is_closed_while_it_samples_is_abandoned_and_on_record(tmp_path):
    hold = Hold()
    async with controlled(tmp_path, ["part", hold]) as (_, control):
        opened = (await control.post("/sessions")).json()
        async with client(opened) as sdk:
            asked = asyncio.create_task(sdk.chat.completions.create(**ask("hi")))
            await hold.reached.wait()
            await control.delete(f"/sessions/{opened['id']}")
            with pytest.raises(openai.AuthenticationError):
                await asked
        (call,) = (await control.get(f"/sessions/{opened['id']}/calls")).json()["calls"]
        assert call["finish_reason"] == "abandoned"


async def test_keys_and_the_token_are_never_in_the_logs(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "polar"):
        caplog.set_level(logging.DEBUG, logger=name)
    asyncio.get_running_loop().set_debug(True)
    async with controlled(tmp_path, "yes", [ZeroDivisionError("bug")]) as (setup, control):
        opened = (await control.post("/sessions", json={"key": KEY})).json()
        await control.post("/sessions", json={"key": KEY})
        async with client(opened) as sdk:
            await sdk.chat.completions.create(**ask("hi"))
            with pytest.raises(openai.InternalServerError):
                await sdk.chat.completions.create(**ask("hi", "yes", "break"))
        async with setup.http() as http:
            for path in (f"/s/{KEY}/nothing", f"/s/{KEY}", f"/{KEY}/v1/models"):
                await http.get(path)
            await http.post(f"/s/{KEY}/v1/chat/completions", content=b"{")
        with pytest.raises(ConfigError):
            load_token(tmp_path)
    ours = [r for r in caplog.records if not r.name.startswith(("httpx", "httpcore", "openai"))]
    text = "\n".join(logging.Formatter().format(record) for record in ours)
    assert "ZeroDivisionError" in text
    assert KEY not in text
    assert TOKEN not in text
    assert KEY not in repr(Session(SessionId("s"), TaskId("t"), "g", 0, KEY))


def test_a_token_is_made_for_its_owner_alone_and_read_again(tmp_path):
    made = load_token(tmp_path / "token")
    assert len(made) > 40
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert load_token(tmp_path / "token") == made


@pytest.mark.parametrize(
    ("mode", "content", "said"),
    [(0o644, TOKEN, "by others"), (0o660, TOKEN, "by others"), (0o600, "short", "no token")],
)
def test_a_token_that_others_may_know_is_refused(tmp_path, mode, content, said):
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=said) as caught:
        load_token(file)
    assert content not in str(caught.value)
