"""What clients ask beside their calls, each through its provider's own client at one address."""

import anthropic
import httpx
import httpx2
import openai
import pytest
from gateway_support import serving
from google import genai
from google.genai import errors, types


def anthropics(setup, session):
    return anthropic.AsyncAnthropic(
        base_url=f"{setup.url}/s/{session.key}",
        api_key=session.key,
        max_retries=0,
        http_client=httpx2.AsyncClient(trust_env=False),
    )


def googles(setup, session, http):
    options = types.HttpOptions(base_url=f"{setup.url}/s/{session.key}", httpx_async_client=http)
    return genai.Client(api_key=session.key, http_options=options)


async def test_each_client_is_told_of_the_model_in_its_own_form(tmp_path):
    async with serving(tmp_path) as setup, setup.http() as http:
        session = await setup.open()
        google = googles(setup, session, http).aio
        async with setup.client(session) as openais, anthropics(setup, session) as claude:
            (ours,) = [model async for model in openais.models.list()]
            assert (ours.id, ours.object, ours.owned_by) == ("bytes", "model", "polar")
            (theirs,) = [model async for model in claude.models.list()]
            assert (theirs.id, theirs.type, theirs.display_name) == ("bytes", "model", "bytes")
            (third,) = [model async for model in await google.models.list()]
            assert third.name == "models/bytes"
            assert "generateContent" in third.supported_actions


async def test_each_client_is_told_of_the_one_model_that_it_asks_for(tmp_path):
    async with serving(tmp_path) as setup, setup.http() as http:
        session = await setup.open()
        google = googles(setup, session, http).aio
        async with setup.client(session) as openais, anthropics(setup, session) as claude:
            assert (await openais.models.retrieve("org/name")).id == "org/name"
            found = await claude.models.retrieve("claude-x")
            assert (found.id, found.type) == ("claude-x", "model")
            assert (await google.models.get(model="gemini-x")).name == "models/gemini-x"


async def test_a_question_without_a_route_is_answered_in_the_clients_own_form(tmp_path):
    async with serving(tmp_path) as setup, setup.http() as http:
        session = await setup.open()
        async with setup.client(session) as openais, anthropics(setup, session) as claude:
            with pytest.raises(openai.NotFoundError) as ours:
                await openais.embeddings.create(model="m", input="x")
            with pytest.raises(anthropic.NotFoundError) as theirs:
                await claude.messages.batches.retrieve("b")
        with pytest.raises(errors.ClientError) as third:
            await googles(setup, session, http).aio.models.embed_content(model="m", contents="x")
    assert ours.value.code == "unknown_url"
    assert theirs.value.type == "not_found_error"
    assert (third.value.code, third.value.status) == (404, "NOT_FOUND")
    assert "POST /v1/messages/count_tokens," in str(theirs.value)
    assert "/models/MODEL:countTokens" in str(theirs.value)


@pytest.mark.parametrize("headers", [{"anthropic-version": "2023-06-01"}, {"x-goog-api-key": "x"}])
async def test_the_list_of_models_is_for_sessions_alone_whoever_asks(tmp_path, headers):
    async with serving(tmp_path) as setup, setup.http() as http:
        await setup.open()
        answer = await http.get("/s/guess/v1/models", headers=headers)
    assert answer.status_code == 401


async def test_a_websocket_is_refused_such_that_codex_sends_its_request_at_once(tmp_path):
    """Codex tries seven times where the answer is 404."""
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-version": "13",
    }
    async with serving(tmp_path, "yes") as setup, setup.http() as http:
        session = await setup.open()
        path = f"/s/{session.key}/v1/responses"
        answer = await http.get(path, headers=upgrade)
        asked = await http.post(path, json={"model": "m", "input": "hi"})
    assert answer.status_code == 426
    assert answer.json()["error"]["code"] == "websocket_not_supported"
    assert asked.status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_a_compressed_body_is_refused_by_name(tmp_path, encoding):
    async with serving(tmp_path) as setup, setup.http() as http:
        session = await setup.open()
        answer: httpx.Response = await http.post(
            f"/s/{session.key}/v1/chat/completions",
            content=b"\x28\xb5\x2f\xfd",
            headers={"content-encoding": encoding},
        )
    assert answer.status_code == 400
    assert encoding in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "content-encoding"
