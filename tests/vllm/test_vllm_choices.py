"""What harnesses ask for besides one free reply, of a real model on a real vLLM server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from engine_servers import MODEL_ENV, URL_ENV, needed
from sdk_clients import ANY, CLIENTS, NAMES, client_of

from polar.engines import TapedEngine, read_tape
from polar.engines.settings import VllmSettings
from polar.engines.vllm import VllmEngine
from polar.gateway import Gateway, SessionPolicy
from polar.rendering import Renderer, load_renderer
from polar.store import SqliteJournal
from polar.trajectory import TapeRecord, build, check, check_tape
from polar.types import Call, Session, SessionId, TaskId

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

NAME = NAMES[0]
SESSION = Session(SessionId("s"), TaskId("t"), "g", 0, "key-of-the-session")
FEW = SessionPolicy(max_tokens=32)
SAID = "List the files of this folder."


@dataclass
class Served:
    """A gateway before the server."""

    url: str
    renderer: Renderer
    journal: SqliteJournal

    async def calls(self) -> Sequence[Call]:
        return await self.journal.calls(SESSION.id)


@asynccontextmanager
async def served(tmp_path: Path, policy: SessionPolicy = FEW) -> AsyncIterator[Served]:
    """Serve one session; at the end all of it is compared with the engine's own tape."""
    renderer = await asyncio.to_thread(load_renderer, needed(MODEL_ENV))
    engine = TapedEngine(VllmEngine(VllmSettings(urls=(needed(URL_ENV),))), tmp_path / "tape")
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(SqliteJournal.open(tmp_path / "j.sqlite"))
        stack.push_async_callback(engine.aclose)
        gateway = Gateway(engine, renderer, journal)
        address = await stack.enter_async_context(gateway.serve())
        await journal.open_session(SESSION, phase="rollout", step=0)
        await gateway.open(SESSION, policy)
        yield Served(address.url, renderer, journal)
        await gateway.close(SESSION.id)
        calls = await journal.calls(SESSION.id)
    entries = await asyncio.to_thread(lambda: list(read_tape(tmp_path / "tape")))
    assert [entry.session_id for entry in entries if len(entry.token_ids)]
    records = [
        TapeRecord(each.prompt_sha256, each.prompt_tokens, each.token_ids, each.logprobs)
        for each in entries
    ]
    assert check_tape(calls, records) == 0
    check(calls, build(calls))


async def until_idle() -> None:
    """Wait until the server works on no request."""
    async with httpx.AsyncClient(timeout=60) as client, asyncio.timeout(60):
        while True:
            text = (await client.get(f"{needed(URL_ENV)}/metrics")).text
            lines = [each for each in text.splitlines() if each.startswith("vllm:num_requests_run")]
            if not any(float(line.rsplit(" ", 1)[1]) for line in lines):
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("must", [NAME, ANY])
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_forced_call_goes_on_from_its_opening_and_the_chain_stays_whole(
    tmp_path, name, must, stream
):
    async with served(tmp_path) as setup:
        async with client_of(name, setup.url, timeout_s=300) as client:
            history = client.said(SAID)
            first = await client.ask(SESSION.key, history, stream=stream, must=must)
            history += [*first.items, *client.results([(made, "a", False) for made in first.calls])]
            history += [] if first.calls else client.said("Go on.")
            await client.ask(SESSION.key, history, stream=stream)
        forced, free = await setup.calls()
        opening = setup.renderer.call_opening(None if must == ANY else NAME)
    assert opening
    assert (forced.opening_tokens, free.opening_tokens) == (len(opening), 0)
    assert forced.prompt_ids[-len(opening) :].tolist() == opening
    assert first.usage == (len(forced.prompt_ids), len(forced.sampled_ids))
    assert must == ANY or all(made[1] == NAME for made in first.calls[:1])
    kept = [*forced.prompt_ids.tolist(), *forced.sampled_ids.tolist()]
    joined = free.prompt_ids[: len(kept)].tolist() == kept
    assert joined == (free.parent_id == forced.id) == (free.fork_reason is None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", ["openai_chat", "google_generate"])
async def test_several_replies_are_sampled_apart_from_one_prompt(tmp_path, form, stream):
    if form == "openai_chat":
        path, body = "/v1/chat/completions", {"n": 3, "temperature": 1.0, "stream": stream}
        body |= {"model": "m", "messages": [{"role": "user", "content": SAID}]}
    else:
        path = f"/v1beta/models/m:{'streamGenerateContent' if stream else 'generateContent'}"
        config = {"candidateCount": 3, "temperature": 1.0}
        contents = [{"role": "user", "parts": [{"text": SAID}]}]
        body = {"contents": contents, "generationConfig": config}
    async with served(tmp_path) as setup:
        async with httpx.AsyncClient(timeout=300) as http:
            answer = await http.post(f"{setup.url}/s/{SESSION.key}{path}", json=body)
        assert answer.status_code == 200, answer.text
        calls = await setup.calls()
    assert len({call.id for call in calls}) == len(calls) == 3
    assert len({tuple(call.prompt_ids.tolist()) for call in calls}) == 1
    assert len({tuple(call.sampled_ids.tolist()) for call in calls}) > 1
    if not stream:
        told = answer.json()
        texts = [
            choice["message"]["content"]
            if form == "openai_chat"
            else "".join(part.get("text", "") for part in choice["content"]["parts"])
            for choice in told["choices" if form == "openai_chat" else "candidates"]
        ]
        assert sorted(texts) == sorted(call.reply.content for call in calls)


async def test_a_client_that_hangs_up_stops_the_server_and_leaves_what_was_sampled(tmp_path):
    body = {"model": "m", "messages": [{"role": "user", "content": SAID}], "stream": True}
    async with served(tmp_path, SessionPolicy(max_tokens=4000)) as setup:
        url = f"{setup.url}/s/{SESSION.key}/v1/chat/completions"
        async with (
            httpx.AsyncClient(timeout=300) as http,
            http.stream("POST", url, json=body) as answer,
        ):
            async for line in answer.aiter_lines():
                if '"content":"' in line and '"content":""' not in line:
                    break
        await until_idle()
        calls: Sequence[Call] = ()
        async with asyncio.timeout(60):
            while not calls:
                calls = await setup.calls()
                await asyncio.sleep(0.05)
    (call,) = calls
    assert call.finish_reason == "abandoned"
    assert 0 < len(call.sampled_ids) < 4000


async def test_a_stop_string_ends_the_sampling_and_is_cut_from_the_reply(tmp_path):
    body = {"model": "m", "messages": [{"role": "user", "content": "Count: 1, 2, 3, 4."}]}
    async with served(tmp_path) as setup:
        async with httpx.AsyncClient(timeout=300) as http:
            url = f"{setup.url}/s/{SESSION.key}/v1/chat/completions"
            answer = await http.post(url, json=body | {"stop": ["e", "a"]})
        (call,) = await setup.calls()
        await until_idle()
    said = answer.json()["choices"][0]["message"]["content"]
    assert not {"e", "a"} & set(said)
    assert call.finish_reason in ("stop", "length")
