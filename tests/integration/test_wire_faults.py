"""Faults that proxies are known for, in every wire format that can have them, over loopback."""

import asyncio
import json
import re

import pytest
from gateway_support import Hold, serving
from test_proxy_traps import FORMATS, Format, post

from polar.gateway import GatewaySettings

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
REASONS = {
    "openai_chat": lambda event: event["choices"][0]["delta"].get("reasoning_content"),
    "openai_responses": lambda event: (
        event["delta"] if event["type"] == "response.reasoning_text.delta" else None
    ),
    "anthropic_messages": lambda event: event.get("delta", {}).get("thinking"),
    "google_generate": lambda event: next(
        (p["text"] for p in event["candidates"][0]["content"]["parts"] if p.get("thought")), None
    ),
}
"""Format -> the reasoning that an event of a stream tells."""
ONE_CALL = {
    "openai_chat": {"parallel_tool_calls": False},
    "openai_responses": {"parallel_tool_calls": False},
    "anthropic_messages": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
}
COUNTS = {
    "openai_responses": ("/v1/responses/input_tokens", "input_tokens"),
    "anthropic_messages": ("/v1/messages/count_tokens", "input_tokens"),
    "google_generate": ("/v1beta/models/m:countTokens", "totalTokens"),
}
CUT = {
    "openai_chat": '"finish_reason":"length"',
    "openai_responses": '"incomplete_details":{"reason":"max_output_tokens"}',
    "anthropic_messages": '"stop_reason":"max_tokens"',
    "google_generate": '"finishReason":"MAX_TOKENS"',
}
OVERFLOW = {
    "openai_chat": '"code":"context_length_exceeded"',
    "openai_responses": '"code":"context_length_exceeded"',
    "anthropic_messages": "prompt is too long: ",
    "google_generate": "The input token count (",
}
"""Format -> what its clients know a full context window by."""
STOPS = {
    "openai_chat": ({"stop": ["END"]}, '"finish_reason":"stop"'),
    "anthropic_messages": (
        {"stop_sequences": ["END"]},
        '"stop_reason":"stop_sequence","stop_sequence":"END"',
    ),
    "google_generate": ({"generationConfig": {"stopSequences": ["END"]}}, '"finishReason":"STOP"'),
}
CALLS = ('"tool_calls":[', '"function_call"', '"tool_use"', '"functionCall"')
"""What an answer with a call contains."""


def runnable(name: str, text: str) -> list[str]:
    """Find what a client could run of an answer, written without blanks.

    Chat Completions tells of a call that was cut, with arguments that are no object.
    """
    if name == "openai_chat":
        pieces = re.findall(r'"arguments":"((?:[^"\\]|\\.)*)"', text)
        arguments = json.loads('"' + "".join(pieces) + '"')
        assert arguments.startswith('{"command":')
        return [arguments] if arguments.endswith("}") else []
    return [told for told in CALLS if told in text]


def limited(form: Format, tokens: int) -> dict:
    """Make the fields that ask for so many tokens at most."""
    return json.loads(json.dumps(form.limited).replace("128000", str(tokens)))


@pytest.mark.parametrize("name", REASONS)
async def test_reasoning_is_in_the_stream_before_anything_else_is_sampled(tmp_path, name):
    hold, form = Hold(), FORMATS[name]
    async with serving(tmp_path, ["<think>why", hold, "</think>so"]) as setup, setup.http() as http:
        session = await setup.open()
        url = f"/s/{session.key}{form.path(True)}"
        async with http.stream("POST", url, json=form.body("hi", True)) as answer:
            lines, told = answer.aiter_lines(), ""
            while told != "why":
                line = await anext(lines)
                if line.startswith("data: {"):
                    told += REASONS[name](json.loads(line[6:])) or ""
            assert not hold.released.is_set()
            hold.released.set()
            rest = "".join([line async for line in lines])
    assert form.terminal in rest


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ONE_CALL)
async def test_who_asks_for_one_call_at_a_time_is_given_one(tmp_path, name, stream):
    form = FORMATS[name]
    async with serving(tmp_path, CALL + CALL, CALL + CALL) as setup, setup.http() as http:
        session = await setup.open()
        both, one = [
            (await post(http, session, form, form.body(text, stream) | more, stream=stream)).text
            for text, more in (("two", {}), ("one", ONE_CALL[name]))
        ]
        calls = await setup.journal.calls(session.id)
    ids = [[call.id for call in each.reply.tool_calls] for each in calls]
    assert [len(each) for each in ids] == [2, 1]
    assert all(call_id in both for call_id in ids[0])
    assert ids[1][0] in one
    assert len(calls[1].sampled_ids) < len(calls[0].sampled_ids)


@pytest.mark.parametrize("name", COUNTS)
async def test_a_prompt_is_counted_as_the_call_will_have_it_and_costs_no_call(tmp_path, name):
    form, (path, field) = FORMATS[name], COUNTS[name]
    async with serving(tmp_path) as setup, setup.http() as http:
        session = await setup.open()
        body = form.body("how long is this?", False)
        asked = {key: value for key, value in body.items() if key not in ("stream", "store")}
        counted = await http.post(f"/s/{session.key}{path}", json=asked)
        assert not await setup.journal.calls(session.id)
        answer = await post(http, session, form, body)
        (call,) = await setup.journal.calls(session.id)
    assert counted.status_code == 200
    assert counted.json()[field] == len(call.prompt_ids) == form.usage(answer.json())[0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", FORMATS)
async def test_of_a_call_that_is_cut_by_length_nothing_can_be_run(tmp_path, name, stream):
    form = FORMATS[name]
    async with serving(tmp_path, "I look. " + CALL) as setup, setup.http() as http:
        session = await setup.open()
        body = form.body("hi", stream) | limited(form, len("I look. " + CALL) - 17)
        answer = await post(http, session, form, body, stream=stream)
        (call,) = await setup.journal.calls(session.id)
    assert call.finish_reason == "length"
    text = answer.text.replace(" ", "")
    assert CUT[name] in text
    assert not runnable(name, text)


@pytest.mark.parametrize("name", FORMATS)
async def test_of_a_call_whose_sampling_is_given_up_nothing_can_be_run(tmp_path, name):
    hold, form = Hold(), FORMATS[name]
    settings = GatewaySettings(keepalive_s=0.05)
    script = ["I look. " + CALL[:-17], hold]
    async with serving(tmp_path, script, settings=settings) as setup, setup.http() as http:
        session = await setup.open()
        url = f"/s/{session.key}{form.path(True)}"
        text = ""

        async def read() -> None:
            nonlocal text
            async with http.stream("POST", url, json=form.body("hi", True)) as answer:
                async for line in answer.aiter_lines():
                    text += line

        reading = asyncio.create_task(read())
        await hold.reached.wait()
        await setup.gateway.close(session.id)
        await asyncio.wait([reading])
        (call,) = await setup.journal.calls(session.id)
    assert reading.exception() is not None
    assert call.finish_reason == "abandoned"
    assert form.terminal not in text
    assert not runnable(name, text.replace(" ", ""))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", FORMATS)
async def test_a_full_context_window_is_an_error_before_any_stream_begins(tmp_path, name, stream):
    form = FORMATS[name]
    async with serving(tmp_path, max_context=300) as setup, setup.http() as http:
        session = await setup.open()
        body = form.body("x" * 400, stream)
        answer = await post(http, session, form, body, stream=stream)
        assert setup.engine.requests == []
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert OVERFLOW[name] in answer.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", STOPS)
async def test_a_stop_string_ends_the_reply_in_every_format_that_has_them(tmp_path, name, stream):
    form, (asked, finish) = FORMATS[name], STOPS[name]
    async with serving(tmp_path, "oneENDtwo") as setup, setup.http() as http:
        session = await setup.open()
        body = form.body("hi", stream) | asked
        answer = await post(http, session, form, body, stream=stream)
        (call,) = await setup.journal.calls(session.id)
    assert bytes(call.sampled_ids.tolist()) == b"oneEND"
    assert (call.reply.content, call.finish_reason) == ("one", "stop")
    assert finish in answer.text
    assert '"two"' not in answer.text
