"""The Responses format over loopback: one chain of tokens, continued responses, held streams."""

import asyncio
import itertools
import json

import httpx
import openai
import pytest
from gateway_support import Hold, serving

from polar import trajectory
from polar.errors import EngineError
from polar.gateway import GatewaySettings
from polar.gateway.conversations import Conversations
from polar.types import Message

TOOLS = [
    {"type": "function", "name": "bash", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch"},
]
SHELL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
PATCH = '<tool_call>{"name": "patch", "arguments": {"input": "a\\u00e9\\n"}}</tool_call>'
ODD = '<tool_call>{"name": "patch", "arguments": {"text": "a"}}</tool_call>'
ANSWERS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}


def results(output):
    return [
        {"type": ANSWERS[item.type], "call_id": item.call_id, "output": "done"}
        for item in output
        if item.type in ANSWERS
    ]


async def stream(client, **fields):
    async with client.responses.stream(model="m", **fields) as events:
        return await events.get_final_response()


@pytest.mark.parametrize("streams", [False, True])
async def test_a_conversation_with_all_kinds_of_tools_is_one_chain(tmp_path, streams):
    scripts = ("<think>so</think>look: " + SHELL + PATCH, ODD, "<think>yes</think>done", "bye")
    async with serving(tmp_path, *scripts) as setup:
        session = await setup.open()
        history = [{"role": "user", "content": "go"}]
        async with setup.client(session) as client:
            for _ in scripts:
                body = {"input": history, "tools": TOOLS, "store": False}
                reply = (
                    await stream(client, **body)
                    if streams
                    else await client.responses.create(model="m", **body)
                )
                history += [item.to_dict() for item in reply.output]
                history += results(reply.output) or [{"role": "user", "content": "and"}]
        calls = await setup.journal.calls(session.id)
        assert [call.parent_id for call in calls] == [None, *(call.id for call in calls[:-1])]
        assert trajectory.check(calls, trajectory.build(calls)).traces == 1
        assert setup.gateway.usage(session.id).forks == {}
    inputs = [item["input"] for item in history if item.get("type") == "custom_tool_call"]
    assert inputs == ["aé\n", '{"text": "a"}']


async def test_a_response_is_continued_by_its_id_and_extends_its_tokens(tmp_path):
    async with serving(tmp_path, SHELL, "second", "third") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            said, previous = [{"role": "user", "content": "go"}], None
            for _ in range(3):
                reply = await stream(
                    client,
                    input=said,
                    tools=TOOLS,
                    instructions="be good",
                    previous_response_id=previous,
                )
                assert reply.previous_response_id == previous
                previous = reply.id
                said = results(reply.output) or [{"role": "user", "content": "and"}]
        calls = await setup.journal.calls(session.id)
        roles = [message.role for message in calls[-1].messages]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
        assert [call.parent_id for call in calls] == [None, calls[0].id, calls[1].id]
        assert setup.gateway.usage(session.id).forks == {}


async def test_instructions_hold_for_one_response_and_other_messages_go_on(tmp_path):
    async with serving(tmp_path) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            asked = [{"role": "developer", "content": "always"}, {"role": "user", "content": "go"}]
            first = await client.responses.create(model="m", input=asked, instructions="once")
            await client.responses.create(
                model="m", input="and", instructions="now", previous_response_id=first.id
            )
            await client.responses.create(model="m", input="or", previous_response_id=first.id)
        _, second, third = await setup.journal.calls(session.id)
        assert [message.content for message in second.messages[:2]] == ["now", "always"]
        assert [message.content for message in third.messages[:2]] == ["always", "go"]
        assert [call.messages[-1].content for call in (second, third)] == ["and", "or"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_response_repeats_what_was_asked_for(tmp_path, streams):
    asked = {
        "input": "go",
        "instructions": "be good",
        "max_output_tokens": 50,
        "max_tool_calls": 3,
        "metadata": {"run": "7"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "high"},
        "safety_identifier": "u",
        "store": False,
        "temperature": 0.5,
        "text": {"verbosity": "low"},
        "tool_choice": {"type": "function", "name": "bash"},
        "tools": TOOLS[:1],
        "top_p": 0.9,
    }
    async with serving(tmp_path, " {}}") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            reply = (
                await stream(client, **asked)
                if streams
                else await client.responses.create(model="m", **asked)
            )
    told = reply.to_dict()
    changed = {
        "reasoning": {"effort": "high", "summary": None},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
    }
    for name in asked.keys() - {"input", "tools"}:
        assert told[name] == changed.get(name, asked[name]), name
    assert [tool["name"] for tool in told["tools"]] == ["bash"]


async def test_the_reasoning_in_a_reply_is_counted_in_sampled_tokens(tmp_path):
    thought = "<think>\nso é</think>"
    scripts = thought + "\n\nyes", "no thought", ["<think>cut off"]
    async with serving(tmp_path, *scripts) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            counted = []
            for _ in scripts:
                reply = await client.responses.create(model="m", input="go", max_output_tokens=50)
                counted.append(reply.usage.output_tokens_details.reasoning_tokens)
    assert counted == [len(thought.encode()), 0, len("<think>cut off") + 1]


async def test_a_response_can_be_continued_twice(tmp_path):
    async with serving(tmp_path, "root", "left", "right") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            root = await client.responses.create(model="m", input="go")
            for text in ("a", "b"):
                await client.responses.create(model="m", input=text, previous_response_id=root.id)
        calls = await setup.journal.calls(session.id)
        assert [call.parent_id for call in calls] == [None, calls[0].id, calls[0].id]


async def test_the_length_of_a_continued_prompt_is_that_of_the_call(tmp_path):
    async with serving(tmp_path) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            first = await client.responses.create(model="m", input="go")
            body = {"input": "and", "previous_response_id": first.id}
            counted = await client.responses.input_tokens.count(**body)
            reply = await client.responses.create(model="m", **body)
        assert counted.input_tokens == reply.usage.input_tokens


async def test_what_may_not_be_continued_is_not_found(tmp_path):  # litellm 13551
    async with serving(tmp_path, "kept out", "theirs", ["ab", EngineError("gone")]) as setup:
        mine, theirs = await setup.open(), await setup.open()
        async with setup.client(mine) as client, setup.client(theirs) as other:
            unstored = await client.responses.create(model="m", input="go", store=False)
            foreign = await other.responses.create(model="m", input="go")
            with pytest.raises(openai.InternalServerError):
                await client.responses.create(model="m", input="break")
            broken = (await setup.journal.calls(mine.id))[-1]
            for unknown in (unstored.id, foreign.id, broken.id, "resp_1"):
                with pytest.raises(openai.BadRequestError, match=f"'{unknown}' was not found") as e:
                    await client.responses.create(
                        model="m", input="and", previous_response_id=unknown
                    )
                assert e.value.param == "previous_response_id"
        assert len(await setup.journal.calls(mine.id)) == 2


def test_conversations_cost_what_is_new_in_them():
    conversations, history = Conversations(), []
    for turn in range(50):
        history += [Message("user", f"question {turn}"), Message("assistant", f"answer {turn}")]
        conversations.add(f"call-{turn}", [Message(m.role, m.content) for m in history])
    assert len(conversations) == len(history)
    assert conversations.find("call-9") == tuple(history[:20])
    assert conversations.find("call-50") is None


async def test_calls_that_wait_for_the_record_keep_the_stream_alive(tmp_path):
    hold = Hold()
    settings = GatewaySettings(keepalive_s=0.02)
    async with serving(tmp_path, ["ok " + SHELL, hold, SHELL], settings=settings) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            events = await client.responses.create(model="m", input="go", tools=TOOLS, stream=True)
            kinds = []
            async for event in events:
                kinds.append(event.type)
                if kinds.count("response.in_progress") == 4:
                    hold.released.set()
    before = kinds[: kinds.index("response.output_text.done")]
    assert before.count("response.in_progress") >= 4
    assert "response.function_call_arguments.delta" not in before
    assert kinds.count("response.output_item.done") == 3
    assert kinds[-1] == "response.completed"


async def test_deltas_that_are_held_back_do_not_pass_for_a_lively_stream(tmp_path):
    settings = GatewaySettings(keepalive_s=0.05)
    async with serving(tmp_path, settings=settings) as setup:
        session = await setup.open()
        holds = [Hold() for _ in range(20)]
        setup.engine.scripts.append([part for hold in holds for part in (SHELL, hold)])
        async with setup.client(session) as client:
            events = await client.responses.create(model="m", input="go", tools=TOOLS, stream=True)
            async with asyncio.TaskGroup() as group:
                group.create_task(release(holds, every_s=0.02))
                kinds = [event.type async for event in events]
    assert kinds[: kinds.index("response.output_item.added")].count("response.in_progress") >= 3
    assert kinds.count("response.output_item.done") == 20


async def release(holds, *, every_s):
    for hold in holds:
        await hold.reached.wait()
        await asyncio.sleep(every_s)
        hold.released.set()


async def test_a_broken_stream_ends_in_a_failure_and_no_terminal_event(tmp_path):
    async with serving(tmp_path, ["ab" + SHELL, EngineError("gone")]) as setup:
        session = await setup.open()
        lines: list[str] = []
        async with setup.http() as http:
            with pytest.raises(httpx.RemoteProtocolError):
                await read_lines(http, session, lines)
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert data[-1]["type"] == "response.failed"
    assert data[-1]["response"]["error"]["message"] == "gone"
    assert not [event for event in data if "function_call" in json.dumps(event.get("item"))]
    numbers = [event["sequence_number"] for event in data]
    assert all(later == earlier + 1 for earlier, later in itertools.pairwise(numbers))


async def read_lines(http, session, lines):
    body = {"model": "m", "input": "go", "tools": TOOLS, "stream": True}
    async with http.stream("POST", f"/s/{session.key}/v1/responses", json=body) as response:
        async for line in response.aiter_lines():
            lines.append(line)
