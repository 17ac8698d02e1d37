"""Several replies to one request: siblings on record, one answer to the client."""

import asyncio
import json

import httpx
import openai
import pytest
from gateway_support import END, Hold, ask, serving
from google import genai
from google.genai import types

from polar import trajectory
from polar.errors import EngineError
from polar.gateway import GatewaySettings, SessionPolicy

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'


async def streamed(client, **body):
    async with client.chat.completions.stream(
        **body, stream_options={"include_usage": True}
    ) as stream:
        return await stream.get_final_completion()


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_are_calls_of_one_prompt_and_one_of_them_goes_on(tmp_path, stream):
    async with serving(tmp_path, "<think>so</think>one", CALL, "done") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            body = ask("hi", tools=[TOOL], n=2)
            reply = (
                await streamed(client, **body)
                if stream
                else await client.chat.completions.create(**body)
            )
            first, second = reply.choices
            turn = second.message.to_dict(exclude_none=True)
            result = {"role": "tool", "tool_call_id": second.message.tool_calls[0].id}
            history = [*body["messages"], turn, {**result, "content": "seen"}]
            await client.chat.completions.create(model="m", messages=history, tools=[TOOL])
        calls = await setup.journal.calls(session.id)
        usage = setup.gateway.usage(session.id)
    assert [(c.index, c.finish_reason) for c in reply.choices] == [(0, "stop"), (1, "tool_calls")]
    assert (first.message.content, first.message.reasoning_content) == ("one", "so")
    one, two, last = calls
    assert one.prompt_ids.tolist() == two.prompt_ids.tolist()
    assert (last.parent_id, last.fork_reason) == (two.id, None)
    assert [one.fork_reason, two.fork_reason] == [None, "sibling"]
    assert usage.forks == {"sibling": 1}
    assert usage.coalesced_requests == 0
    assert reply.usage.prompt_tokens == len(one.prompt_ids)
    assert reply.usage.completion_tokens == len(one.sampled_ids) + len(two.sampled_ids)
    report = trajectory.check(calls, trajectory.build(calls))
    assert (report.traces, report.kept) == (2, sum(len(call.sampled_ids) for call in calls))


@pytest.mark.parametrize("stream", [False, True])
async def test_googles_candidates_are_calls_of_one_prompt(tmp_path, stream):
    async with serving(tmp_path, "one", "<think>so</think>two") as setup:
        session = await setup.open()
        async with setup.http() as http:
            options = types.HttpOptions(base_url=setup.url, httpx_async_client=http)
            api = genai.Client(api_key=session.key, http_options=options).aio.models
            asked = {"model": "m", "contents": "hi"}
            asked["config"] = types.GenerateContentConfig(candidate_count=2)
            if stream:
                replies = [each async for each in await api.generate_content_stream(**asked)]
            else:
                replies = [await api.generate_content(**asked)]
        calls = await setup.journal.calls(session.id)
    texts, finished = {0: "", 1: ""}, {}
    for candidate in (found for reply in replies for found in reply.candidates):
        said = [part.text for part in candidate.content.parts if not part.thought]
        texts[candidate.index or 0] += "".join(said)
        if candidate.finish_reason:
            finished[candidate.index or 0] = candidate.finish_reason.value
    assert texts == {0: "one", 1: "two"}
    assert finished == {0: "STOP", 1: "STOP"}
    told = replies[-1].usage_metadata
    assert told.prompt_token_count == len(calls[0].prompt_ids) == len(calls[1].prompt_ids)
    assert told.total_token_count - told.prompt_token_count == sum(
        len(call.sampled_ids) for call in calls
    )


async def test_pieces_of_choices_are_sent_as_they_are_sampled_with_their_index(tmp_path):
    holds = Hold(), Hold()
    async with serving(tmp_path, ["a", holds[0], "c"], ["b", holds[1], "d"]) as setup:
        session = await setup.open()
        seen = []
        async with setup.client(session) as client:
            stream = await client.chat.completions.create(**ask("hi", n=2, stream=True))
            async for chunk in stream:
                for choice in chunk.choices:
                    if choice.delta.content:
                        seen.append((choice.index, choice.delta.content))
                if len(seen) == 2:
                    holds[1].released.set()
                if len(seen) == 3:
                    holds[0].released.set()
    assert sorted(seen[:2]) == [(0, "a"), (1, "b")]
    assert seen[2:] == [(1, "d"), (0, "c")]


async def test_a_retry_joins_all_the_choices_that_still_run(tmp_path):
    holds = Hold(), Hold()
    async with serving(tmp_path, ["on", holds[0], "e"], ["tw", holds[1], "o"]) as setup:
        session = await setup.open()
        async with setup.client(session) as client, asyncio.TaskGroup() as group:
            first = group.create_task(client.chat.completions.create(**ask("hi", n=2)))
            for hold in holds:
                await hold.reached.wait()
            said = ["", ""]
            again = await client.chat.completions.create(**ask("hi", n=2, stream=True))
            async for chunk in again:
                for choice in chunk.choices:
                    said[choice.index] += choice.delta.content or ""
                if said == ["on", "tw"]:
                    for hold in holds:
                        hold.released.set()
        assert setup.gateway.usage(session.id).coalesced_requests == 1
        assert len(await setup.journal.calls(session.id)) == 2
    assert [choice.message.content for choice in first.result().choices] == said == ["one", "two"]


async def test_one_choice_that_fails_fails_the_answer_and_the_others_are_abandoned(tmp_path):
    hold = Hold()
    settings = GatewaySettings(disconnect_grace_s=0)
    scripts = ["ab", hold], [EngineError("gone")]
    async with serving(tmp_path, *scripts, settings=settings) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            with pytest.raises(openai.InternalServerError, match="gone"):
                await client.chat.completions.create(**ask("hi", n=2))
        await setup.gateway.close(session.id)
        calls = await setup.journal.calls(session.id)
    assert {call.finish_reason for call in calls} == {"abandoned", "error"}


async def read_lines(http, url, body, lines):
    async with http.stream("POST", url, json=body) as response:
        async for line in response.aiter_lines():
            lines.append(line)


async def test_a_stream_of_choices_of_which_one_fails_is_cut(tmp_path):
    hold = Hold()
    async with serving(tmp_path, ["ab", hold], ["x", EngineError("gone")]) as setup:
        session = await setup.open()
        lines = []
        async with setup.http() as http:
            body = ask("hi", n=2, stream=True)
            url = f"/s/{session.key}/v1/chat/completions"
            with pytest.raises(httpx.RemoteProtocolError):
                await read_lines(http, url, body, lines)
        hold.released.set()
    data = [line[6:] for line in lines if line.startswith("data: ")]
    assert json.loads(data[-1])["error"]["message"] == "gone"
    assert "[DONE]" not in data


async def test_a_client_that_leaves_abandons_all_choices(tmp_path):
    holds = Hold(), Hold()
    settings = GatewaySettings(disconnect_grace_s=0)
    async with serving(tmp_path, *(["a", hold] for hold in holds), settings=settings) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            stream = await client.chat.completions.create(**ask("hi", n=2, stream=True))
            for hold in holds:
                await hold.reached.wait()
            await stream.close()
            await asyncio.gather(*(hold.left.wait() for hold in holds))
        await setup.gateway.close(session.id)
        calls = await setup.journal.calls(session.id)
    assert [call.finish_reason for call in calls] == ["abandoned"] * 2


async def test_each_choice_is_a_call_that_counts_against_the_limit(tmp_path):
    async with serving(tmp_path) as setup:
        session = await setup.open(SessionPolicy(max_calls=3))
        async with setup.client(session) as client:
            await client.chat.completions.create(**ask("hi", n=2))
            with pytest.raises(openai.BadRequestError, match="call limit reached"):
                await client.chat.completions.create(**ask("hi", n=2))
            await client.chat.completions.create(**ask("hi"))
        assert setup.gateway.usage(session.id).calls == 3


async def test_a_seed_counts_up_from_choice_to_choice(tmp_path):
    async with serving(tmp_path) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            await client.chat.completions.create(**ask("hi", n=3, seed=5))
    assert [request.sampling.seed for request in setup.engine.requests] == [5, 6, 7]


async def test_choices_can_all_be_forced_to_be_calls(tmp_path):
    rest = ' {"command": "ls"}}\n</tool_call>'
    async with serving(tmp_path, rest, rest) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            body = ask("hi", tools=[TOOL], n=2, tool_choice="required")
            reply = await client.chat.completions.create(**body)
        calls = await setup.journal.calls(session.id)
    assert [choice.message.tool_calls[0].function.name for choice in reply.choices] == ["bash"] * 2
    assert calls[0].prompt_ids.tolist() == calls[1].prompt_ids.tolist()
    assert calls[0].sampled_ids.tolist()[-1] == END
