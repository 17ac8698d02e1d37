"""What trips proxies between harnesses and models, in every wire format, over loopback."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from gateway_support import Hold, serving

from polar.errors import EngineError
from polar.gateway import GatewaySettings, SessionPolicy

IMAGE = "aGVsbG8="


@dataclass(frozen=True)
class Format:
    """How to ask in a wire format, and where in the answer things are."""

    path: Callable[[bool], str]
    """Whether to stream -> path, with what the query says."""
    body: Callable[[str, bool], dict[str, Any]]
    """Text and whether to stream -> a request with no limit of its own."""
    limited: dict[str, Any]
    """What a harness adds to ask for 128,000 tokens."""
    usage: Callable[[dict[str, Any]], tuple[int, int]]
    """Tokens of the prompt and sampled ones, as told."""
    terminal: str
    """What only a stream that ended well contains."""
    image: dict[str, Any] = field(default_factory=dict)
    """A request with an image."""


def _chat(text: str, stream: bool) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}


def _responses(text: str, stream: bool) -> dict[str, Any]:
    return {"model": "m", "input": text, "stream": stream, "store": False}


def _messages(text: str, stream: bool) -> dict[str, Any]:
    return {**_chat(text, stream), "max_tokens": 1000}


def _google(text: str, stream: bool) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": text}]}]}


def _google_path(stream: bool) -> str:
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"/v1beta/models/m:{method}"


FORMATS = {
    "openai_chat": Format(
        path=lambda stream: "/v1/chat/completions",
        body=_chat,
        limited={"max_tokens": 128_000},
        usage=lambda got: (got["usage"]["prompt_tokens"], got["usage"]["completion_tokens"]),
        terminal="data: [DONE]",
        image={
            "model": "m",
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        },
    ),
    "openai_responses": Format(
        path=lambda stream: "/v1/responses",
        body=_responses,
        limited={"max_output_tokens": 128_000},
        usage=lambda got: (got["usage"]["input_tokens"], got["usage"]["output_tokens"]),
        terminal="response.completed",
        image={
            "model": "m",
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        },
    ),
    "anthropic_messages": Format(
        path=lambda stream: "/v1/messages?beta=true",
        body=_messages,
        limited={"max_tokens": 128_000},
        usage=lambda got: (got["usage"]["input_tokens"], got["usage"]["output_tokens"]),
        terminal="message_stop",
        image={
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}],
        },
    ),
    "google_generate": Format(
        path=_google_path,
        body=_google,
        limited={"generationConfig": {"maxOutputTokens": 128_000}},
        usage=lambda got: (
            got["usageMetadata"]["promptTokenCount"],
            got["usageMetadata"]["candidatesTokenCount"]
            + got["usageMetadata"].get("thoughtsTokenCount", 0),
        ),
        terminal='"finishReason"',
        image={
            "contents": [
                {"parts": [{"inlineData": {"mimeType": "image/png", "data": IMAGE}}]},
            ]
        },
    ),
}


@pytest.fixture(params=FORMATS)
def form(request) -> Format:
    return FORMATS[request.param]


async def post(http, session, form, body, *, stream=False) -> httpx.Response:
    return await http.post(f"/s/{session.key}{form.path(stream)}", json=body)


async def test_the_path_alone_lets_a_session_in_and_no_other_key_does(tmp_path, form):
    async with serving(tmp_path, "yes") as setup, setup.http() as http:
        session = await setup.open()
        stranger = await http.post(f"/s/guessed{form.path(False)}", json=form.body("hi", False))
        ours = await post(http, session, form, form.body("hi", False))
    assert stranger.status_code == 401
    assert ours.status_code == 200
    assert "yes" in ours.text


async def test_a_retry_while_the_first_still_runs_is_one_call_whatever_the_order_of_keys(
    tmp_path, form
):
    hold = Hold()
    async with serving(tmp_path, [hold, "once"]) as setup, setup.http() as http:
        session = await setup.open()
        body = form.body("hi", False)
        shuffled = dict(reversed(body.items()))
        first = asyncio.create_task(post(http, session, form, body))
        await hold.reached.wait()
        again = asyncio.create_task(post(http, session, form, shuffled))
        while setup.gateway.usage(session.id).coalesced_requests == 0:  # noqa: ASYNC110 - a count is polled
            await asyncio.sleep(0.01)
        hold.released.set()
        answers = await asyncio.gather(first, again)
        calls = await setup.journal.calls(session.id)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert len(calls) == 1


async def test_a_waiting_stream_begins_at_once_and_stays_alive_in_its_own_format(tmp_path, form):
    hold = Hold()
    settings = GatewaySettings(keepalive_s=0.05)
    async with (
        serving(tmp_path, [hold, "Z"], settings=settings) as setup,
        setup.http() as http,
    ):
        session = await setup.open()
        url = f"/s/{session.key}{form.path(True)}"
        async with http.stream("POST", url, json=form.body("hi", True)) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.aiter_lines()
            events = 0
            while events < 4:
                events += (await anext(lines)).startswith("data: {")
            hold.released.set()
            rest = [line async for line in lines]
    assert '"Z"' in "".join(rest)
    assert form.terminal in "".join(rest)


async def test_a_stream_that_breaks_is_never_ended_as_if_it_were_whole(tmp_path, form):
    script = ["Q and more", EngineError("gone")]
    async with serving(tmp_path, script) as setup, setup.http() as http:
        session = await setup.open()
        url = f"/s/{session.key}{form.path(True)}"
        text = ""

        async def read() -> None:
            nonlocal text
            async with http.stream("POST", url, json=form.body("hi", True)) as answer:
                async for line in answer.aiter_lines():
                    text += line + "\n"

        with pytest.raises(httpx.RemoteProtocolError):
            await read()
        (call,) = await setup.journal.calls(session.id)
    assert '"Q"' in text
    assert form.terminal not in text
    assert call.finish_reason == "error"


async def test_what_is_asked_for_as_a_stream_is_answered_as_one(tmp_path, form):
    async with serving(tmp_path, "a", "a") as setup, setup.http() as http:
        session = await setup.open()
        streamed = await post(http, session, form, form.body("x", True), stream=True)
        whole = await post(http, session, form, form.body("y", False))
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert form.terminal in streamed.text
    assert whole.headers["content-type"].startswith("application/json")


async def test_usage_is_what_was_sampled_and_not_a_guess(tmp_path, form):
    async with serving(tmp_path, "seven") as setup, setup.http() as http:
        session = await setup.open()
        answer = await post(http, session, form, form.body("hi", False))
        (call,) = await setup.journal.calls(session.id)
    assert form.usage(answer.json()) == (len(call.prompt_ids), len(call.sampled_ids))


async def test_a_failing_engine_is_told_with_the_time_to_wait(tmp_path, form):
    async with serving(tmp_path, [EngineError("down")]) as setup, setup.http() as http:
        session = await setup.open()
        answer = await post(http, session, form, form.body("hi", False))
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert "down" in json.dumps(answer.json())


async def test_an_image_is_refused_by_name_and_costs_no_call(tmp_path, form):
    async with serving(tmp_path) as setup, setup.http() as http:
        session = await setup.open()
        answer = await post(http, session, form, form.image)
        assert not await setup.journal.calls(session.id)
    assert answer.status_code == 400
    assert "not supported" in answer.text


async def test_more_tokens_than_there_is_room_for_are_clamped(tmp_path, form):
    async with serving(tmp_path, "ok", max_context=500) as setup, setup.http() as http:
        session = await setup.open()
        answer = await post(http, session, form, form.body("hi", False) | form.limited)
        (call,) = await setup.journal.calls(session.id)
    assert answer.status_code == 200
    assert call.sampling.max_tokens == 500 - len(call.prompt_ids)


async def test_calls_at_the_same_time_in_one_session_do_not_wait_for_each_other(tmp_path, form):
    first, second = Hold(), Hold()
    async with serving(tmp_path, [first, "1"], [second, "2"]) as setup, setup.http() as http:
        session = await setup.open()
        main = asyncio.create_task(post(http, session, form, form.body("main", False)))
        await first.reached.wait()
        sub = asyncio.create_task(post(http, session, form, form.body("sub-agent", False)))
        await second.reached.wait()
        second.released.set()
        assert (await sub).status_code == 200
        assert not main.done()
        first.released.set()
        assert (await main).status_code == 200
        calls = await setup.journal.calls(session.id)
    assert [call.parent_id for call in calls] == [None, None]


async def test_a_call_of_the_agents_own_shell_is_told_apart(tmp_path, form):
    policy = SessionPolicy(
        kind_of=lambda chat, headers: "main" if "x-harness" in headers else "foreign"
    )
    async with serving(tmp_path, "a", "b") as setup, setup.http() as http:
        session = await setup.open(policy)
        url = f"/s/{session.key}{form.path(False)}"
        await http.post(url, json=form.body("hi", False), headers={"x-harness": "1"})
        await http.post(url, json=form.body("curl", False))
        calls = await setup.journal.calls(session.id)
    assert [call.kind for call in calls] == ["main", "foreign"]
    assert setup.gateway.usage(session.id).foreign_calls == 1


async def test_calls_without_end_are_capped(tmp_path, form):
    async with serving(tmp_path, "a", "b") as setup, setup.http() as http:
        session = await setup.open(SessionPolicy(max_calls=1))
        answers = [
            await post(http, session, form, form.body(text, False)) for text in ("one", "two")
        ]
    assert [answer.status_code for answer in answers] == [200, 400]
    assert "call limit" in answers[1].text
