"""Chat Completions servers: what they are taken for, and what they tell of a reply."""

import asyncio
from contextlib import AsyncExitStack, aclosing

import pytest
from openai_wire import END, logprob, openai_wire

from polar.engines import SampleRequest
from polar.engines.openai import OpenAIEngine
from polar.engines.settings import OpenAISettings
from polar.errors import BadRequest, ConfigError, ContextOverflow, EngineError, EngineRefused
from polar.types import (
    Chat,
    Message,
    ReasoningDelta,
    Sampling,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStart,
    ToolSpec,
)

HI = Chat("m", (Message("user", "Hello"),))
TOOL = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})


@pytest.fixture
async def serve():
    """Start wire servers and engines on them."""
    async with AsyncExitStack() as stack:

        async def start(*, settings=None, **how):
            url, wire = await stack.enter_async_context(openai_wire(**how))
            engine = OpenAIEngine(OpenAISettings(urls=(url,), tries=2, **(settings or {})))
            stack.push_async_callback(engine.aclose)
            return engine, wire

        yield start


def request(chat=HI, **sampling):
    return SampleRequest((), Sampling(**sampling), chat=chat)


async def whole(engine, asked):
    async with aclosing(engine.sample(asked)) as chunks:
        return [chunk async for chunk in chunks]


async def test_ids_and_logprobs_come_as_the_server_tells_them(serve):
    engine, wire = await serve()
    wire.scripts.append("Hey")

    chunks = await whole(engine, request(temperature=0.5))

    ids = [token for chunk in chunks for token in chunk.token_ids]
    told = [each for chunk in chunks for each in chunk.logprobs]
    prompts = [chunk.prompt_ids for chunk in chunks if chunk.prompt_ids]
    assert ids == [*b"Hey", END]
    assert told == [logprob(token, 0.5) for token in ids]
    assert prompts == [tuple(wire.prompt(wire.asked[-1]))]
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == "stop"


async def test_nothing_of_the_sampling_is_left_to_the_servers_defaults(serve):
    engine, wire = await serve()
    await whole(engine, request(top_p=0.9, max_tokens=7, seed=3))
    asked = wire.asked[-1]
    named = {"temperature": 1.0, "top_p": 0.9, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert named.items() <= asked.items()
    assert (asked["max_tokens"], asked["seed"]) == (7, 3)


@pytest.mark.parametrize(("how", "way"), [("none", "none"), ("auto", "auto"), ("never", None)])
async def test_tools_are_shown_in_the_way_that_changes_the_prompt(serve, how, way):
    engine, wire = await serve(shows_tools=how)
    call = ToolCall("c1", "look", "{}")
    said = (Message("user", "go"), Message("assistant", "", tool_calls=(call,)))
    result = Message("tool", "seen", tool_call_id="c1")

    await whole(engine, request(Chat("m", (*said, result), tools=(TOOL,))))

    asked = wire.asked[-1]
    assert asked.get("tool_choice") == way
    if way is None:
        assert "tools" not in asked
        assert '"name": "look"' in asked["messages"][0]["content"]
        assert asked["messages"][2]["content"].startswith("<tool_call>")
        assert "<tool_response>\nseen" in asked["messages"][3]["content"]
    else:
        assert asked["messages"][1]["tool_calls"][0]["function"]["name"] == "look"
        assert asked["messages"][2]["tool_call_id"] == "c1"


async def test_a_server_that_tells_no_ids_is_refused_for_training(serve):
    engine, _ = await serve(ids=False)
    with pytest.raises(EngineRefused, match=r"no token ids.*text_only"):
        await engine.probe()


@pytest.mark.parametrize("strict", [False, True])
async def test_where_text_alone_is_asked_for_it_is_taken_and_said(serve, strict):
    engine, wire = await serve(ids=False, strict=strict, settings={"text_only": True})
    wire.scripts.append("Hey")

    found = await engine.probe()
    chunks = await whole(engine, request())

    assert (found.renders, found.token_ids, found.weight_updates) == (True, False, False)
    assert "text only" in found.detail
    assert not any(chunk.token_ids or chunk.prompt_ids for chunk in chunks)
    deltas = [delta for chunk in chunks for delta in chunk.deltas]
    assert deltas == [TextDelta(letter) for letter in "Hey"]
    assert chunks[-1].usage.sampled_tokens == 4


async def test_tool_calls_that_the_server_reads_are_numbered_from_nought(serve):
    engine, wire = await serve(ids=False, settings={"text_only": True})
    function = {"name": "look", "arguments": "{}"}
    wire.calls = ({"id": "a", "function": function}, {"id": "b", "function": function})
    wire.scripts.append("x")

    chunks = await whole(engine, request(Chat("m", HI.messages, tools=(TOOL,))))

    deltas = [delta for chunk in chunks for delta in chunk.deltas]
    assert wire.asked[-1]["tool_choice"] == "auto"
    assert deltas[-4:] == [
        ToolCallStart(0, "a", "look"),
        ToolArgumentsDelta(0, "{}"),
        ToolCallStart(1, "b", "look"),
        ToolArgumentsDelta(1, "{}"),
    ]
    assert chunks[-1].finish_reason == "stop"


async def test_a_prompt_that_is_too_long_is_told_with_its_length(serve):
    engine, _ = await serve(window=240)
    with pytest.raises(ContextOverflow) as caught:
        await whole(engine, request(Chat("m", (Message("user", "x" * 400),))))
    assert caught.value.prompt_tokens > 400
    assert caught.value.max_context == 240


async def test_where_only_prompt_and_limit_do_not_fit_the_window_is_the_limit(serve):
    engine, wire = await serve(window=240)
    wire.scripts.append("y" * 400)

    chunks = await whole(engine, request(max_tokens=235))

    assert "max_tokens" not in wire.asked[-1]
    prompt = next(chunk.prompt_ids for chunk in chunks if chunk.prompt_ids)
    assert len(prompt) + sum(len(chunk.token_ids) for chunk in chunks) == 240
    assert chunks[-1].finish_reason == "length"


async def test_a_request_that_the_server_refuses_is_the_harnesss_fault(serve):
    engine, wire = await serve()
    await engine.probe()
    wire.refusal = lambda body, prompt: {"message": "no such role", "code": 400}
    with pytest.raises(BadRequest, match="no such role"):
        await whole(engine, request())


async def test_ids_that_are_missing_in_the_middle_of_a_reply_fail_it(serve):
    engine, wire = await serve()
    await engine.probe()
    wire.scripts.append("Hello")
    wire.forget_from = 3
    with pytest.raises(EngineError, match="told the ids of"):
        await whole(engine, request())


async def test_a_reply_that_breaks_off_is_not_begun_again_at_another_server(serve):
    engine, wire = await serve()
    await engine.probe()
    asked = len(wire.asked)
    wire.scripts.extend(["Hello", "Hello"])
    wire.cut_after = 2
    with pytest.raises(EngineError, match="broke off"):
        await whole(engine, request())
    assert len(wire.asked) == asked + 1


async def test_a_reply_that_breaks_off_before_its_first_token_is_asked_for_again(serve):
    engine, wire = await serve(ids=False, settings={"text_only": True})
    await engine.probe()
    wire.scripts.extend(["Hello", "Hello"])
    wire.cut_after = 0

    async def mend():
        while len(wire.asked) < 3:  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)
        wire.cut_after = None

    mending = asyncio.create_task(mend())
    chunks = await whole(engine, request())
    await mending

    said = "".join(d.text for chunk in chunks for d in chunk.deltas)
    assert said == "Hello"


async def test_raw_logprobs_serve_temperature_1_alone(serve):
    engine, _ = await serve(raw=True)
    assert "temperature 1 only" in (await engine.probe()).detail
    assert await whole(engine, request(temperature=1.0))
    with pytest.raises(EngineRefused, match="not of the distribution"):
        await whole(engine, request(temperature=0.7))


async def test_the_key_is_read_from_the_environment_when_it_is_needed(serve, monkeypatch):
    engine, wire = await serve(settings={"api_key_env": "POLAR_TEST_KEY"})
    with pytest.raises(ConfigError, match="POLAR_TEST_KEY is not set"):
        await engine.probe()
    monkeypatch.setenv("POLAR_TEST_KEY", "secret")
    await engine.probe()
    assert wire.keys[-1] == "Bearer secret"


async def test_a_pause_holds_what_is_sampled_and_loses_nothing(serve):
    engine, wire = await serve()
    await engine.probe()
    await engine.pause()
    wire.scripts.append("Hey")
    task = asyncio.create_task(whole(engine, request()))
    await asyncio.sleep(0.05)
    assert not task.done()
    await engine.resume()
    ids = [token for chunk in await task for token in chunk.token_ids]
    assert ids == [*b"Hey", END]


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
async def test_an_address_may_end_in_v1(ending):
    async with openai_wire() as (url, _):
        engine = OpenAIEngine(OpenAISettings(urls=(url.rstrip("/") + ending,)))
        assert (await engine.probe()).model == "bytes"
        await engine.aclose()


def reasoning(field):
    from polar.engines.openai_wire import EventReader

    line = b'data: {"choices":[{"delta":{"%s":"hm"}}]}' % field.encode()
    return EventReader(ids=False).read(line).deltas


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_under_either_name(field):
    assert reasoning(field) == (ReasoningDelta("hm"),)
