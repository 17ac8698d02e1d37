"""Sessions on an engine that makes its own prompts: recorded ids, or text alone and labelled so."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anthropic
import openai
import pytest
from gateway_support import ByteEngine, ByteRenderer, Setup, ask, serving
from openai_wire import END, OpenAIWire, logprob, openai_wire

from polar.engines import TapedEngine, read_tape
from polar.engines.openai import OpenAIEngine
from polar.engines.settings import OpenAISettings
from polar.gateway import Gateway
from polar.store import SqliteJournal, read_journal
from polar.trajectory import build, check
from polar.types import ToolCall

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@dataclass
class Recorded(Setup):
    """A gateway on a Chat Completions server."""

    wire: OpenAIWire | None = None


@asynccontextmanager
async def recorded(tmp_path, *scripts, settings=None, **how):
    async with AsyncExitStack() as stack:
        url, wire = await stack.enter_async_context(openai_wire(**how))
        sampler = OpenAIEngine(OpenAISettings(urls=(url,), tries=2, **(settings or {})))
        engine = TapedEngine(sampler, tmp_path / "tape")
        stack.push_async_callback(engine.aclose)
        journal = await stack.enter_async_context(SqliteJournal.open(tmp_path / "journal.db"))
        gateway = Gateway(engine, ByteRenderer(), journal)
        address = await stack.enter_async_context(gateway.serve())
        wire.scripts.extend(scripts)
        yield Recorded(gateway, engine, journal, address.url, wire=wire)


def calls_of(tmp_path, session):
    with read_journal(tmp_path / "journal.db") as reader:
        return list(reader.calls(session.id))


async def say(setup, session, *contents, **fields):
    async with setup.client(session) as client:
        return await client.chat.completions.create(**ask(*contents, **fields))


async def test_what_the_server_told_is_on_record_and_turns_are_joined(tmp_path):
    async with recorded(tmp_path, "one", "two") as setup:
        session = await setup.open()
        first = await say(setup, session, "Hello")
        await say(setup, session, "Hello", first.choices[0].message.content, "And?")
        usage = await setup.gateway.close(session.id)

    one, two = calls_of(tmp_path, session)
    assert (one.capture, two.capture) == ("recorded", "recorded")
    assert one.sampled_ids.tolist() == [*b"one", END]
    assert one.logprobs.tolist() == pytest.approx([logprob(t) for t in [*b"one", END]])
    assert [one.prompt_ids.tolist(), two.prompt_ids.tolist()] == [
        setup.wire.prompt(body) for body in setup.wire.asked[-2:]
    ]
    assert (two.parent_id, two.fork_reason) == (one.id, None)
    assert (usage.sampled_tokens, usage.text_calls, dict(usage.forks)) == (8, 0, {})
    built = build([one, two])
    check([one, two], built)
    assert (len(built.traces), built.report.kept, built.report.capture) == (1, 8, "recorded")
    taped = await asyncio.to_thread(lambda: list(read_tape(tmp_path / "tape")))
    assert [e.prompt_tokens for e in taped] == [len(call.prompt_ids) for call in (one, two)]


async def test_a_history_that_the_server_renders_otherwise_is_a_fork_that_says_so(tmp_path):
    async with recorded(tmp_path, " one ", "two", "three") as setup:
        session = await setup.open()
        setup.wire.render_reply = str.strip  # as many templates do
        await say(setup, session, "Hello")
        await say(setup, session, "Hello", " one ", "And?")
        await say(setup, session, "Hello", " one ", "And?", "two", "Then?")

    one, two, three = calls_of(tmp_path, session)
    assert (two.parent_id, two.fork_reason) == (None, "server_rendering")
    assert (three.parent_id, three.fork_reason) == (two.id, None)
    built = build([one, two, three])
    check([one, two, three], built)
    assert (built.report.sampled, built.report.kept) == (16, 16)


async def test_an_edited_history_and_a_retry_have_the_reasons_that_they_have_elsewhere(tmp_path):
    async with recorded(tmp_path, "one", "two", "new", "one") as setup:
        session = await setup.open()
        await say(setup, session, "Hello")
        await say(setup, session, "Hello", "one", "And?")
        await say(setup, session, "Hello", "one", "Or?")
        await say(setup, session, "Hello")

    reasons = [call.fork_reason for call in calls_of(tmp_path, session)]
    assert reasons == [None, None, "edited_message", "retry"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_does_not_fit_is_refused_before_any_head_is_sent(tmp_path, stream):
    async with recorded(tmp_path, window=600) as setup:
        session = await setup.open()
        with pytest.raises(openai.BadRequestError, match="context window"):
            await say(setup, session, "x" * 700, stream=stream)
        usage = await setup.gateway.close(session.id)

    assert calls_of(tmp_path, session) == []
    assert (usage.calls, usage.refused_for_length, usage.cut_off) == (0, 1, "context")
    assert usage.longest_refused > 700


async def test_a_refusal_of_the_server_reaches_the_harness_in_its_own_form(tmp_path):
    async with recorded(tmp_path) as setup:
        session = await setup.open()
        setup.wire.refusal = lambda body, prompt: {"message": "no such role", "code": 400}
        client = anthropic.AsyncAnthropic(
            base_url=f"{setup.url}/s/{session.key}", api_key=session.key, max_retries=0
        )
        with pytest.raises(anthropic.BadRequestError, match="no such role"):
            await client.messages.create(
                model="m", max_tokens=9, messages=[{"role": "user", "content": "Hello"}]
            )
        await client.close()
    assert calls_of(tmp_path, session) == []


@pytest.mark.parametrize("shows_tools", ["none", "never"])
async def test_tool_calls_are_parsed_from_the_ids_whatever_the_server_makes_of_them(
    tmp_path, shows_tools
):
    async with recorded(tmp_path, CALL, shows_tools=shows_tools) as setup:
        session = await setup.open()
        reply = await say(setup, session, "Look", tools=TOOLS)

    (called,) = reply.choices[0].message.tool_calls
    assert (called.function.name, called.function.arguments) == ("look", '{"at": 1}')
    (call,) = calls_of(tmp_path, session)
    assert call.sampled_ids.tolist() == [*CALL.encode(), END]
    assert call.reply.tool_calls == (ToolCall(called.id, "look", '{"at": 1}'),)


async def test_a_client_that_leaves_keeps_what_was_told_as_abandoned(tmp_path):
    async with recorded(tmp_path, "a long reply") as setup:
        session = await setup.open()
        setup.wire.hold_at = 5
        async with setup.client(session) as client:
            stream = await client.chat.completions.create(**ask("Hello", stream=True))
            await anext(aiter(stream))
            await stream.close()
        await setup.gateway.close(session.id)
        setup.wire.running.set()

    (call,) = calls_of(tmp_path, session)
    assert call.finish_reason == "abandoned"
    assert bytes(call.sampled_ids.tolist()) == b"a lon"
    assert len(call.prompt_ids)


async def test_a_streams_first_event_tells_the_prompts_length_as_the_server_told_it(tmp_path):
    async with recorded(tmp_path, "one") as setup:
        session = await setup.open()
        client = anthropic.AsyncAnthropic(
            base_url=f"{setup.url}/s/{session.key}", api_key=session.key, max_retries=0
        )
        async with client:
            asked = {"model": "m", "max_tokens": 9, "stream": True}
            said = [{"role": "user", "content": "Hello"}]
            events = await client.messages.create(**asked, messages=said)
            first = await anext(aiter(events))
            async for _ in events:
                pass

    (call,) = calls_of(tmp_path, session)
    assert first.message.usage.input_tokens == len(call.prompt_ids)


async def test_of_a_server_that_tells_no_ids_the_text_is_kept_and_labelled(tmp_path):
    text = {"text_only": True}
    async with recorded(tmp_path, "one", "two", settings=text, ids=False) as setup:
        session = await setup.open()
        first = await say(setup, session, "Hello")
        await say(setup, session, "Hello", first.choices[0].message.content, "And?")
        usage = await setup.gateway.close(session.id)

    calls = calls_of(tmp_path, session)
    assert [call.capture for call in calls] == ["text", "text"]
    assert [call.reply.content for call in calls] == ["one", "two"]
    assert not any(len(call.sampled_ids) or len(call.prompt_ids) for call in calls)
    assert first.usage.completion_tokens == 4
    assert (usage.calls, usage.text_calls, usage.sampled_tokens) == (2, 2, 0)
    report = build(calls).report
    assert (report.text_calls, report.sampled, report.capture) == (2, 0, "text")


async def test_text_is_cut_at_the_harnesss_own_stop_string(tmp_path):
    text = {"text_only": True}
    async with recorded(tmp_path, "one STOP two", settings=text, ids=False) as setup:
        session = await setup.open()
        reply = await say(setup, session, "Hello", stop="STOP")
    (call,) = calls_of(tmp_path, session)
    assert reply.choices[0].message.content == call.reply.content == "one "


async def test_polars_own_gateway_is_such_a_server(tmp_path):
    """Text of a session behind a session: two real wires, one after the other."""
    (tmp_path / "inner").mkdir()
    scripts = ("x", CALL)  # for the probe, then for the session
    async with AsyncExitStack() as stack:
        inner = await stack.enter_async_context(serving(tmp_path / "inner", *scripts))
        key = await inner.open()
        sampler = OpenAIEngine(
            OpenAISettings(urls=(f"{inner.url}/s/{key.key}",), text_only=True, max_context=9_000)
        )
        stack.push_async_callback(sampler.aclose)
        journal = await stack.enter_async_context(SqliteJournal.open(tmp_path / "journal.db"))
        gateway = Gateway(sampler, ByteRenderer(), journal)
        address = await stack.enter_async_context(gateway.serve())
        outer = Setup(gateway, ByteEngine(), journal, address.url)
        session = await outer.open()
        reply = await say(outer, session, "Look", tools=TOOLS, stream=False)

    (called,) = reply.choices[0].message.tool_calls
    assert (called.function.name, called.function.arguments) == ("look", '{"at": 1}')
    (call,) = calls_of(tmp_path, session)
    assert (call.capture, call.finish_reason) == ("text", "tool_calls")


@pytest.mark.parametrize("first", [False, True])
async def test_a_call_that_ended_before_its_prompt_was_told_disturbs_no_build(tmp_path, first):
    async with recorded(tmp_path, "one", "two") as setup:
        session = await setup.open()
        if not first:
            await say(setup, session, "Hello")
        setup.wire.running.clear()
        with pytest.raises(openai.APITimeoutError):
            await say(setup, session, "Hello", "one", "And?", timeout=0.3)
        await asyncio.sleep(0.1)
        setup.wire.running.set()
        await setup.gateway.close(session.id)

    calls = calls_of(tmp_path, session)
    assert (calls[-1].finish_reason, len(calls[-1].prompt_ids)) == ("abandoned", 0)
    built = build(calls)
    check(calls, built)
    assert built.report.sampled == (0 if first else 4)
