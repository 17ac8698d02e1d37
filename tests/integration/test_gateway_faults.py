"""Clients that leave, retry or wait; keys that are unknown; a journal that cannot be written."""

import asyncio
import json

import httpx
import openai
import pytest
from gateway_support import ByteEngine, ByteRenderer, Hold, ask, serving

from polar.engines.base import Capabilities
from polar.errors import EngineError, EngineRefused, GatewayError, JournalError, StaleAttempt
from polar.gateway import Gateway, GatewaySettings, SessionPolicy


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_stops_the_sampling_and_the_rest_is_on_record(tmp_path, stream):
    hold = Hold()
    async with serving(tmp_path, ["partial", hold, "never"], "again") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            leaving = asyncio.create_task(_consume(client, stream))
            await hold.reached.wait()
            leaving.cancel()
            await asyncio.wait([leaving])
            await _until(lambda: setup.gateway.usage(session.id).calls == 1)
            (call,) = await setup.journal.calls(session.id)
            assert call.finish_reason == "abandoned"
            assert bytes(call.sampled_ids.tolist()) == b"partial"
            assert setup.engine.cancelled == [call.id]
            await _consume(client, stream)
        again = (await setup.journal.calls(session.id))[1]
        assert (again.fork_reason, again.finish_reason) == ("retry", "stop")


async def test_an_identical_request_joins_the_call_that_still_runs(tmp_path):
    hold = Hold()
    async with serving(tmp_path, ["on", hold, "ce"]) as setup:
        session = await setup.open()
        async with setup.client(session) as client, asyncio.TaskGroup() as group:
            first = group.create_task(_consume(client, stream=True))
            await hold.reached.wait()
            second = group.create_task(_consume(client, stream=True))
            third = group.create_task(_consume(client, stream=False))
            await _until(lambda: setup.gateway.usage(session.id).coalesced_requests == 2)
            hold.released.set()
        assert {first.result(), second.result(), third.result()} == {"once"}
        assert len(await setup.journal.calls(session.id)) == 1


async def test_identical_requests_of_two_agents_are_two_calls_and_an_agents_own_a_retry(tmp_path):
    hold = Hold()
    async with serving(tmp_path, [hold, "one"], ["two"]) as setup:
        session = await setup.open(SessionPolicy(agent_header="x-agent"))
        async with setup.client(session) as client, asyncio.TaskGroup() as group:
            one = client.with_options(default_headers={"X-Agent": "1"})
            two = client.with_options(default_headers={"X-Agent": "2"})
            first = group.create_task(_consume(one, stream=False))
            await hold.reached.wait()
            again = group.create_task(_consume(one, stream=False))
            await _until(lambda: setup.gateway.usage(session.id).coalesced_requests == 1)
            other = await _consume(two, stream=False)
            hold.released.set()
        assert (first.result(), again.result(), other) == ("one", "one", "two")
        assert len(await setup.journal.calls(session.id)) == 2


async def test_a_retry_within_the_grace_takes_the_call_over(tmp_path):
    hold = Hold()
    settings = GatewaySettings(disconnect_grace_s=30)
    async with serving(tmp_path, ["on", hold, "ce"], settings=settings) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            leaving = asyncio.create_task(_consume(client, stream=True))
            await hold.reached.wait()
            leaving.cancel()
            await asyncio.wait([leaving])
            retry = asyncio.create_task(_consume(client, stream=False))
            await _until(lambda: setup.gateway.usage(session.id).coalesced_requests == 1)
            hold.released.set()
            assert await retry == "once"
        (call,) = await setup.journal.calls(session.id)
        assert call.finish_reason == "stop"


async def test_a_call_without_a_client_ends_after_the_grace(tmp_path):
    hold = Hold()
    settings = GatewaySettings(disconnect_grace_s=0.01)
    async with serving(tmp_path, ["on", hold], settings=settings) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            leaving = asyncio.create_task(_consume(client, stream=False))
            await hold.reached.wait()
            leaving.cancel()
            await asyncio.wait([leaving])
            await _until(lambda: setup.gateway.usage(session.id).unfinished_calls == 1)


async def test_a_waiting_stream_starts_at_once_and_sends_native_no_ops(tmp_path):
    hold = Hold()
    settings = GatewaySettings(keepalive_s=0.01)
    async with serving(tmp_path, [hold, "late"], settings=settings) as setup:
        session = await setup.open()
        path = f"/s/{session.key}/v1/chat/completions"
        async with (
            setup.http() as http,
            http.stream("POST", path, json=ask("hi", stream=True)) as r,
        ):
            deltas = []
            async for line in r.aiter_lines():
                if line.startswith("data: {"):
                    deltas.append(json.loads(line[6:])["choices"][0]["delta"])
                if len(deltas) == 3:
                    hold.released.set()
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert deltas[1:3] == [{}, {}]
        assert "".join(delta.get("content", "") for delta in deltas) == "late"


async def test_a_broken_stream_is_cut_after_an_error_event_and_never_ended_cleanly(tmp_path):
    async with serving(tmp_path, ["ab", EngineError("gone")]) as setup:
        session = await setup.open()
        path = f"/s/{session.key}/v1/chat/completions"
        lines = []

        async def read():
            body = ask("hi", stream=True)
            async with setup.http() as http, http.stream("POST", path, json=body) as response:
                async for line in response.aiter_lines():
                    lines.append(line)

        with pytest.raises(httpx.RemoteProtocolError):
            await read()
        assert "gone" in json.loads(lines[-2][6:])["error"]["message"]
        assert "data: [DONE]" not in lines


async def test_a_new_call_waits_while_the_gateway_is_paused(tmp_path):
    async with serving(tmp_path, "now") as setup:
        session = await setup.open()
        await setup.gateway.pause()
        async with setup.client(session) as client:
            waiting = asyncio.create_task(_consume(client, stream=True, first=(seen := [])))
            await _until(lambda: seen)
            assert setup.engine.requests == []
            before_s = setup.gateway.paused_s()
            await setup.gateway.resume()
            assert await waiting == "now"
        assert setup.gateway.paused_s() >= before_s > 0
        after_s = setup.gateway.paused_s()
        assert after_s == setup.gateway.paused_s()


async def test_a_pause_does_not_count_against_the_engine(tmp_path):
    hold = Hold()
    settings = GatewaySettings(engine_timeout_s=1, keepalive_s=0.1)
    async with serving(tmp_path, ["ab", hold, "c"], settings=settings) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            seen = []
            waiting = asyncio.create_task(_consume(client, stream=True, first=seen))
            await hold.reached.wait()
            await setup.gateway.pause()
            await _until(lambda: len(seen) > 15)  # no-ops of more than the engine's time
            await setup.gateway.resume()
            hold.released.set()
            assert await waiting == "abc"


async def test_a_pause_without_end_is_the_engines_failure(tmp_path):
    settings = GatewaySettings(pause_timeout_s=0.01)
    async with serving(tmp_path, settings=settings) as setup:
        session = await setup.open()
        await setup.gateway.pause()
        async with setup.client(session) as client:
            with pytest.raises(openai.InternalServerError, match="paused for too long"):
                await client.chat.completions.create(**ask("hi"))


async def test_closing_a_session_abandons_its_calls_and_turns_its_key_away(tmp_path):
    hold = Hold()
    async with serving(tmp_path, ["part", hold]) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            waiting = asyncio.create_task(_consume(client, stream=False))
            await hold.reached.wait()
            usage = await setup.gateway.close(session.id)
            with pytest.raises(openai.AuthenticationError):
                await waiting
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.chat.completions.create(**ask("again"))
            assert caught.value.code == "invalid_api_key"
        assert (usage.calls, usage.unfinished_calls, usage.sampled_tokens) == (1, 1, 4)
        assert setup.gateway.usage(session.id) == usage
        with pytest.raises(GatewayError, match="no such session"):
            await setup.gateway.close(session.id)


async def test_leaving_the_gateway_records_what_was_running(tmp_path):
    hold = Hold()
    async with serving(tmp_path, []) as setup:
        session = await setup.open()
        gateway = Gateway(ByteEngine(["part", hold]), ByteRenderer(), setup.journal)
        async with setup.client(session) as client, gateway.serve() as address:
            await gateway.open(session, SessionPolicy())
            client.base_url = f"{address.url}/s/{session.key}/v1"
            waiting = asyncio.create_task(_consume(client, stream=True))
            await hold.reached.wait()
        with pytest.raises((openai.APIError, httpx.RemoteProtocolError)):
            await waiting
        (call,) = await setup.journal.calls(session.id)
        assert call.finish_reason == "abandoned"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_that_cannot_be_recorded_is_not_given(tmp_path, stream):
    async with serving(tmp_path, "secret") as setup:
        session = await setup.open()
        journal = _FullJournal()
        gateway = Gateway(ByteEngine("secret"), ByteRenderer(), journal)
        async with gateway.serve() as address:
            await gateway.open(session, SessionPolicy())
            setup.url = address.url
            async with setup.client(session) as client:
                with pytest.raises((openai.APIError, httpx.RemoteProtocolError)) as caught:
                    await _consume(client, stream)
            assert "could not be put on record" in str(caught.value)
            assert isinstance(gateway.failure, JournalError)
            assert "disk" in str(gateway.failure)


async def test_a_call_that_cannot_be_put_together_fails_the_run_loudly(tmp_path, caplog):
    class BrokenRenderer(ByteRenderer):
        def parser(self, tools, **options):
            parser = super().parser(tools, **options)
            parser.finish = lambda: 1 / 0
            return parser

    async with serving(tmp_path) as setup:
        session = await setup.open()
        gateway = Gateway(ByteEngine("lost"), BrokenRenderer(), setup.journal)
        async with gateway.serve() as address, setup.client(session) as client:
            await gateway.open(session, SessionPolicy())
            client.base_url = f"{address.url}/s/{session.key}/v1"
            with pytest.raises(openai.InternalServerError, match="put on record"):
                await _consume(client, stream=False)
        assert "ZeroDivisionError" in str(gateway.failure)
        assert session.key not in caplog.text


async def test_a_stale_attempt_is_turned_away_without_failing_the_run(tmp_path):
    async with serving(tmp_path, "late") as setup:
        session = await setup.open()
        gateway = Gateway(ByteEngine("late"), ByteRenderer(), _FullJournal(StaleAttempt("stale")))
        async with gateway.serve() as address:
            await gateway.open(session, SessionPolicy())
            setup.url = address.url
            async with setup.client(session) as client:
                with pytest.raises(openai.AuthenticationError):
                    await _consume(client, stream=False)
            assert gateway.failure is None


async def test_keys_are_taken_from_the_path_or_a_header_and_from_nowhere_else(tmp_path):
    async with serving(tmp_path) as setup:
        session, other = await setup.open(), await setup.open()
        async with setup.http() as http:

            async def post(path, **headers):
                return (await http.post(path, json=ask("hi"), headers=headers)).status_code

            bearer = {"authorization": f"Bearer {session.key}"}
            assert await post(f"/s/{session.key}/v1/chat/completions") == 200
            assert await post("/v1/chat/completions", **bearer) == 200
            assert await post("/v1/chat/completions", **{"x-api-key": session.key}) == 200
            assert await post("/v1/chat/completions") == 401
            assert await post("/s/guess/v1/chat/completions", **bearer) == 401
            assert await post(f"/s/{session.id}/v1/chat/completions") == 401
        assert len(await setup.journal.calls(session.id)) == 3
        assert await setup.journal.calls(other.id) == []


async def test_models_are_listed_and_unknown_routes_named(tmp_path):
    async with serving(tmp_path) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            assert [model.id async for model in client.models.list()] == ["bytes"]
            with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings"):
                await client.embeddings.create(model="m", input="x")
        assert (await setup.journal.calls(session.id)) == []


async def test_a_request_that_is_too_large_is_refused(tmp_path):
    settings = GatewaySettings(max_request_mb=0.001)
    async with serving(tmp_path, settings=settings) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(**ask("x" * 5000))
        assert caught.value.status_code == 413


async def test_a_port_in_use_is_an_error_that_says_what_to_do(tmp_path):
    async with serving(tmp_path) as setup:
        port = int(setup.url.rpartition(":")[2])
        second = Gateway(ByteEngine(), ByteRenderer(), setup.journal)
        with pytest.raises(GatewayError, match="Choose another port"):
            async with second.serve(port=port):
                pass


async def test_an_engine_without_logprobs_is_refused(tmp_path):
    class Mute(ByteEngine):
        async def probe(self):
            return Capabilities("m", 10, token_ids=True, logprobs=False, weight_updates=False)

    async with serving(tmp_path) as setup:
        gateway = Gateway(Mute(), ByteRenderer(), setup.journal)
        with pytest.raises(EngineRefused, match="no logprobs"):
            async with gateway.serve():
                pass


class _FullJournal:
    def __init__(self, error: JournalError | None = None) -> None:
        self._error = error or JournalError("the disk is full")

    async def add_call(self, call) -> None:
        raise self._error


async def _consume(client, stream, first=None):
    """Make a request and return its text."""
    if not stream:
        reply = await client.chat.completions.create(**ask("hi"))
        return reply.choices[0].message.content
    text = ""
    async for chunk in await client.chat.completions.create(**ask("hi"), stream=True):
        if first is not None:
            first.append(chunk)
        text += chunk.choices[0].delta.content or ""
    return text


async def _until(condition):
    """Wait for a condition, giving the event loop all the time in between."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - counts have no event to wait for
            await asyncio.sleep(0.001)
