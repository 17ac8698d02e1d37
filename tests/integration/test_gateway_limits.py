"""Clients that send or read slowly, and requests and replies that are too large, over sockets."""

import asyncio
import gc
import json
import re
import socket
from contextlib import asynccontextmanager

import httpx
import openai
import pytest
from gateway_support import Hold, ask, serving

from polar.gateway import GatewaySettings
from polar.gateway.connections import LimitedProtocol

WORDY = "m" * 10_000
"""A name of a model that makes every event of a stream large, for it is in each of them."""


@asynccontextmanager
async def connected(setup, *, receive_buffer_bytes=None):
    """Open a bare connection to the gateway."""
    host, _, port = setup.url.removeprefix("http://").rpartition(":")
    raw = socket.socket()
    if receive_buffer_bytes is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
    # What the reader takes by itself is bounded, so that a test that does not read does not read.
    reader, writer = await asyncio.open_connection(sock=raw, limit=1024)
    try:
        yield reader, writer
    finally:
        writer.close()


def head(session, *, length: int, path="v1/chat/completions") -> bytes:
    return (
        f"POST /s/{session.key}/{path} HTTP/1.1\r\nhost: x\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


async def everything(reader) -> bytes:
    """Read until the connection ends, in whatever way."""
    parts = []
    try:
        while part := await reader.read(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - counts have no event to wait for
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("sent", [b"", b"POST /s/", b"GET / HTTP/1.1\r\nhost: x\r\nx-slow"])
async def test_a_head_that_never_ends_is_cut(tmp_path, sent):
    settings = GatewaySettings(head_timeout_s=0.05)
    async with serving(tmp_path, settings=settings) as setup, connected(setup) as (reader, writer):
        writer.write(sent)
        assert await everything(reader) == b""
        assert setup.gateway.cut_connections == {"slow_head": 1}


async def test_a_head_that_comes_a_byte_at_a_time_is_cut_all_the_same(tmp_path):
    settings = GatewaySettings(head_timeout_s=0.2)
    async with serving(tmp_path, settings=settings) as setup, connected(setup) as (reader, writer):
        answer = asyncio.create_task(everything(reader))
        with_pauses = iter(b"GET / HTTP/1.1\r\nx: " + b"y" * 10_000)
        while not answer.done():
            writer.write(bytes([next(with_pauses)]))
            await asyncio.sleep(0.01)
        assert await answer == b""
        assert setup.gateway.cut_connections == {"slow_head": 1}


async def test_the_second_request_of_a_connection_has_a_deadline_too(tmp_path):
    settings = GatewaySettings(head_timeout_s=0.2)
    async with serving(tmp_path, settings=settings) as setup, connected(setup) as (reader, writer):
        session = await setup.open()
        body = json.dumps(ask("hi")).encode()
        writer.write(head(session, length=len(body)) + body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.write(b"POST /s/")
        await everything(reader)
        assert setup.gateway.cut_connections == {"slow_head": 1}


async def test_an_idle_connection_outlives_the_deadline_of_a_head(tmp_path):
    settings = GatewaySettings(head_timeout_s=0.1)
    async with serving(tmp_path, settings=settings) as setup, setup.http() as http:
        session = await setup.open()
        ports = []
        for text in ("one", "two"):
            async with http.stream(
                "POST", f"/s/{session.key}/v1/chat/completions", json=ask(text)
            ) as answer:
                await answer.aread()
                connection = answer.extensions["network_stream"]
                ports.append(connection.get_extra_info("client_addr")[1])
            await asyncio.sleep(0.3)
        assert ports[0] == ports[1]
        assert setup.gateway.cut_connections == {}


async def test_a_head_without_end_is_cut_at_its_size(tmp_path):
    settings = GatewaySettings(max_head_kb=16)
    async with serving(tmp_path, settings=settings) as setup, connected(setup) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nx-large: " + b"y" * 40_000)
        assert await everything(reader) == b""
        assert setup.gateway.cut_connections == {"large_head": 1}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("v1/chat/completions", "request_timeout"),
        ("v1/responses", "request_timeout"),
        ("v1/messages", "timeout_error"),
        ("v1beta/models/m:generateContent", "DEADLINE_EXCEEDED"),
    ],
)
async def test_a_slow_body_is_answered_in_the_providers_form_and_nothing_is_sampled(
    tmp_path, path, said
):
    settings = GatewaySettings(body_timeout_s=0.05)
    async with serving(tmp_path, settings=settings) as setup, connected(setup) as (reader, writer):
        session = await setup.open()
        writer.write(head(session, length=500, path=path) + b'{"model"')
        answer = await everything(reader)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answer
        assert said in str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"])
        assert setup.engine.requests == []


async def test_a_client_that_goes_on_sending_what_was_refused_is_cut(tmp_path):
    settings = GatewaySettings(body_timeout_s=0.1, max_request_mb=0.001)
    async with serving(tmp_path, settings=settings) as setup, connected(setup) as (reader, writer):
        session = await setup.open()
        writer.write(head(session, length=10**9) + b"x" * 5000)
        answer = await everything(reader)
        assert answer.startswith(b"HTTP/1.1 413")
        assert setup.gateway.cut_connections == {"slow_body": 1}


async def test_a_client_that_does_not_read_is_cut_and_its_call_abandoned(tmp_path):
    hold = Hold()
    settings = GatewaySettings(read_timeout_s=0.1)
    async with (
        serving(tmp_path, ["x" * 1500, hold], settings=settings) as setup,
        connected(setup, receive_buffer_bytes=4096) as (_, writer),
    ):
        session = await setup.open()
        body = json.dumps(ask("hi", stream=True) | {"model": WORDY}).encode()
        writer.write(head(session, length=len(body)) + body)
        await until(lambda: setup.gateway.usage(session.id).unfinished_calls == 1)
        assert setup.gateway.cut_connections == {"slow_reader": 1}
        (call,) = await setup.journal.calls(session.id)
        assert call.finish_reason == "abandoned"
        assert setup.engine.cancelled == [call.id]


async def test_a_client_that_does_not_read_the_end_of_an_answer_is_cut(tmp_path):
    settings = GatewaySettings(read_timeout_s=0.1)
    async with (
        serving(tmp_path, settings=settings) as setup,
        connected(setup, receive_buffer_bytes=4096) as (_, writer),
    ):
        session = await setup.open()
        body = json.dumps(ask("hi") | {"model": "m" * 12_000_000}).encode()
        writer.write(head(session, length=len(body)) + body)
        await until(lambda: setup.gateway.cut_connections == {"slow_reader": 1})
        (call,) = await setup.journal.calls(session.id)
        assert call.finish_reason == "stop"


async def test_connections_ask_whether_the_other_side_is_still_there(tmp_path):
    async with serving(tmp_path) as setup, connected(setup) as (_, writer):
        address = writer.get_extra_info("sockname")

        def served() -> list[LimitedProtocol]:
            protocols = [found for found in gc.get_objects() if type(found) is LimitedProtocol]
            return [found for found in protocols if found.client == address]

        await until(served)
        options = served()[0].transport.get_extra_info("socket")
        assert options.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert options.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


async def test_a_client_that_reads_late_but_in_time_gets_everything(tmp_path):
    hold = Hold()
    async with (
        serving(tmp_path, ["x" * 1500, hold]) as setup,
        connected(setup, receive_buffer_bytes=4096) as (reader, writer),
    ):
        session = await setup.open()
        body = json.dumps(ask("hi", stream=True) | {"model": WORDY}).encode()
        writer.write(head(session, length=len(body)) + body)
        await hold.reached.wait()
        hold.released.set()
        async with asyncio.timeout(30):
            answer = b""
            while b"data: [DONE]" not in answer[-100:]:
                part = await reader.read(65536)
                assert part, "the connection was cut"
                answer += part
        said = re.findall(rb'"content":"(x+)"', answer)
        assert sum(map(len, said)) == 1500
        assert len(said) < 1500, "what waited for the client was not sent together"
        assert setup.gateway.cut_connections == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_that_is_too_large_ends_the_call_and_is_on_record_as_abandoned(
    tmp_path, stream
):
    settings = GatewaySettings(max_reply_mb=100 / 2**20)
    script = ["<think>" + "r" * 40 + "</think>" + "ä" * 40 + "never given"]
    async with serving(tmp_path, script, settings=settings) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            with pytest.raises((openai.APIError, httpx.RemoteProtocolError), match="100 bytes"):
                await consume(client, stream)
        (call,) = await setup.journal.calls(session.id)
        assert call.finish_reason == "abandoned"
        assert setup.engine.cancelled == [call.id]
        assert bytes(call.sampled_ids.tolist()).decode().endswith("ä" * 31)
        assert setup.gateway.failure is None


async def test_a_stream_whose_events_add_up_to_too_much_is_broken_off_and_abandoned(tmp_path):
    hold = Hold()
    settings = GatewaySettings(max_response_mb=0.1)
    async with serving(tmp_path, ["x" * 50, hold], settings=settings) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            stream = await client.chat.completions.create(
                **ask("hi", stream=True) | {"model": WORDY}
            )
            with pytest.raises((openai.APIError, httpx.RemoteProtocolError), match="bytes"):
                async for _ in stream:
                    pass
        await until(lambda: setup.gateway.usage(session.id).unfinished_calls == 1)
        (call,) = await setup.journal.calls(session.id)
        assert call.finish_reason == "abandoned"


async def test_a_whole_answer_that_is_too_large_is_refused(tmp_path):
    settings = GatewaySettings(max_response_mb=0.1)
    async with serving(tmp_path, "x", "x", settings=settings) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            with pytest.raises(openai.BadRequestError, match="answer grew larger"):
                await client.chat.completions.create(**ask("hi") | {"model": "m" * 200_000})
            assert await consume(client, stream=False) == "x"


async def test_a_reply_of_just_the_largest_size_is_given(tmp_path):
    settings = GatewaySettings(max_reply_mb=100 / 2**20)
    async with serving(tmp_path, ["x" * 100], settings=settings) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            assert await consume(client, stream=True) == "x" * 100


async def consume(client, stream):
    if not stream:
        reply = await client.chat.completions.create(**ask("hi"))
        return reply.choices[0].message.content
    text = ""
    async for chunk in await client.chat.completions.create(**ask("hi"), stream=True):
        text += chunk.choices[0].delta.content or ""
    return text


def declaring(levels: int) -> bytes:
    """A request with a tool whose parameters are nested that deeply."""
    parameters = '{"a":' * levels + "1" + "}" * levels
    tool = f'{{"type":"function","function":{{"name":"f","parameters":{parameters}}}}}'
    messages = '[{"role":"user","content":"hi"}]'
    return f'{{"model":"m","messages":{messages},"tools":[{tool}]}}'.encode()


async def test_a_request_too_deep_to_be_recorded_is_refused_and_does_not_end_the_run(tmp_path):
    async with serving(tmp_path, "yes") as setup, setup.http() as http:
        session = await setup.open()
        url = f"{setup.url}/s/{session.key}/v1/chat/completions"
        refused = await http.post(url, content=declaring(400))
        answered = await http.post(url, content=declaring(185))
        assert (refused.status_code, answered.status_code) == (400, 200)
        assert "nested too deeply" in refused.text
        assert setup.gateway.failure is None
        (call,) = await setup.journal.calls(session.id)
        assert call.reply.content == "yes"


async def test_the_head_of_an_answer_is_not_held_back_for_its_body(tmp_path):
    hold = Hold()
    async with serving(tmp_path, [hold, "x"]) as setup, connected(setup) as (reader, writer):
        session = await setup.open()
        body = json.dumps(ask("hi", stream=True)).encode()
        writer.write(head(session, length=len(body)) + body)
        async with asyncio.timeout(5):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
            hold.released.set()
            await reader.readuntil(b"data: [DONE]")


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on(tmp_path):
    async with serving(tmp_path, "x") as setup, connected(setup) as (reader, writer):
        session = await setup.open()
        body = json.dumps(ask("hi")).encode()
        asking = head(session, length=len(body)).replace(b"host: x", b"expect: 100-continue")
        writer.write(asking)
        async with asyncio.timeout(5):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
