"""Calls that a harness forces: begun in the prompt, gone on with by the model, and one chain."""

import asyncio
import itertools
import json

import numpy as np
import openai
import pytest
from gateway_support import END, ByteEngine, ByteRenderer, Hold, ask, serving
from sdk_clients import ANY, CLIENTS, NAMES, client_of

from polar import trajectory
from polar.engines import TapedEngine, read_tape
from polar.engines.base import Capabilities
from polar.gateway import Gateway, SessionPolicy
from polar.rendering.hermes import call_opening

NAME = NAMES[0]
SILENCE = "<think>\n\n</think>\n\n"
REST = ' {"at": 1}}\n</tool_call>'
NAMED = f'{NAME}", "arguments": {{"at": 1}}}}\n</tool_call>'
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("look", "bash")
]
LOOK = {"type": "function", "function": {"name": "look"}}


def opening(name):
    return [*(SILENCE + call_opening(name)).encode()]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("must", "rest"), [(NAME, REST), (ANY, NAMED)])
@pytest.mark.parametrize("name", CLIENTS)
async def test_every_client_gets_the_call_that_it_forces_and_the_chain_stays_whole(
    tmp_path, name, must, rest, stream
):
    begun = opening(None if must == ANY else NAME)
    async with serving(tmp_path, rest, "<think>so</think>done", rest, "bye") as setup:
        session = await setup.open()
        async with client_of(name, setup.url) as client:
            history = client.said("go")
            first = await client.ask(session.key, history, stream=stream, must=must)
            assert [made[1:] for made in first.calls] == [(NAME, {"at": 1})]
            assert (first.content, first.reasoning) == ("", "")
            history += [*first.items, *client.results([(first.calls[0], "seen", False)])]
            second = await client.ask(session.key, history, stream=stream)
            history += [*second.items, *client.said("again")]
            third = await client.ask(session.key, history, stream=stream, must=must)
            history += [*third.items, *client.results([(third.calls[0], "seen", False)])]
            await client.ask(session.key, history, stream=stream)
        calls = await setup.journal.calls(session.id)
        assert setup.gateway.usage(session.id).forks == {}
    assert [call.opening_tokens for call in calls] == [len(begun), 0, len(begun), 0]
    for call, asked in zip(calls, setup.engine.requests, strict=True):
        assert call.prompt_ids.tolist() == list(asked.prompt_ids)
    for call in (calls[0], calls[2]):
        assert call.prompt_ids.tolist()[-len(begun) :] == begun
        assert call.sampled_ids.tolist() == [*rest.encode(), END]
    assert first.usage == (len(calls[0].prompt_ids), len(calls[0].sampled_ids))
    assert [call.parent_id for call in calls] == [None, *(call.id for call in calls[:-1])]
    for parent, call in itertools.pairwise(calls):
        context = np.concatenate([parent.prompt_ids, parent.sampled_ids])
        assert call.prompt_ids[: len(context)].tolist() == context.tolist()
    built = trajectory.build(calls)
    report = trajectory.check(calls, built)
    assert (report.traces, report.kept) == (1, sum(len(call.sampled_ids) for call in calls))


async def test_a_retry_of_a_forced_call_has_the_opening_and_other_choices_do_not(tmp_path):
    rest = ' {"at": 1}}\n</tool_call>'
    async with serving(tmp_path, rest, rest, "free") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            for fields in ({"tool_choice": LOOK}, {"tool_choice": LOOK}, {}):
                await client.chat.completions.create(**ask("hi", tools=TOOLS, **fields))
        first, retry, free = await setup.journal.calls(session.id)
    assert first.prompt_ids.tolist() == retry.prompt_ids.tolist()
    assert first.prompt_ids.tolist() == [*free.prompt_ids.tolist(), *opening("look")]
    assert [call.fork_reason for call in (first, retry, free)] == [None, "retry", "retry"]
    calls = [first, retry, free]
    report = trajectory.check(calls, trajectory.build(calls))
    assert report.kept == report.sampled


async def test_the_engines_own_record_of_a_forced_call_is_that_of_the_journal(tmp_path):
    async with serving(tmp_path) as setup:
        session = await setup.open()
        engine = TapedEngine(ByteEngine(REST, "done"), tmp_path / "tape")
        gateway = Gateway(engine, ByteRenderer(), setup.journal)
        async with gateway.serve() as address, client_of("openai_chat", address.url) as client:
            await gateway.open(session, SessionPolicy())
            turn = await client.ask(session.key, client.said("go"), stream=False, must=NAME)
            results = client.results([(turn.calls[0], "seen", False)])
            history = [*client.said("go"), *turn.items, *results]
            await client.ask(session.key, history, stream=False)
        await engine.aclose()
        calls = await setup.journal.calls(session.id)
        entries = await asyncio.to_thread(list, read_tape(tmp_path / "tape"))
    tape = [
        trajectory.TapeRecord(e.prompt_sha256, e.prompt_tokens, e.token_ids, e.logprobs)
        for e in entries
    ]
    trajectory.check_tape(calls, tape)
    assert [len(record.token_ids) for record in tape] == [len(call.sampled_ids) for call in calls]


async def test_a_forced_request_does_not_join_one_that_is_free(tmp_path):
    hold = Hold()
    async with serving(tmp_path, [hold, "free"], ' {"at": 1}}\n</tool_call>') as setup:
        session = await setup.open()
        async with setup.client(session) as client, asyncio.TaskGroup() as group:
            create = client.chat.completions.create
            free = group.create_task(create(**ask("hi", tools=TOOLS)))
            await hold.reached.wait()
            forced = await create(**ask("hi", tools=TOOLS, tool_choice=LOOK))
            hold.released.set()
        assert forced.choices[0].message.tool_calls[0].function.name == "look"
        assert free.result().choices[0].message.content == "free"
        assert setup.gateway.usage(session.id).coalesced_requests == 0


async def test_one_forced_call_is_all_where_calls_are_to_be_one_at_a_time(tmp_path):
    other = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'
    async with serving(tmp_path, REST + other) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            body = ask("hi", tools=TOOLS, tool_choice=LOOK, parallel_tool_calls=False)
            reply = await client.chat.completions.create(**body)
    (call,) = reply.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"at": 1}


async def test_a_stop_string_is_looked_for_after_the_forced_call(tmp_path):
    async with serving(tmp_path, REST + " name STOP more") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            body = ask("hi", tools=TOOLS, tool_choice=LOOK, stop=["STOP", '"name"'])
            reply = await client.chat.completions.create(**body)
    (choice,) = reply.choices
    assert choice.message.tool_calls[0].function.name == "look"
    assert choice.message.content.strip() == "name"


@pytest.mark.parametrize("tools", [TOOLS[:1], TOOLS])
async def test_the_only_tool_there_is_is_named_for_the_model(tmp_path, tools):
    async with serving(tmp_path, 'look", "arguments": {}}' if tools[1:] else " {}}") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            body = ask("hi", tools=tools, tool_choice="required")
            reply = await client.chat.completions.create(**body)
        (call,) = await setup.journal.calls(session.id)
    assert reply.choices[0].message.tool_calls[0].function.name == "look"
    assert call.opening_tokens == len(opening(None if tools[1:] else "look"))


async def test_a_forced_call_that_is_cut_short_is_the_text_where_calls_are_given_whole(tmp_path):
    async with serving(tmp_path, REST) as setup:
        session = await setup.open(SessionPolicy(whole_calls=True))
        async with setup.client(session) as client:
            body = ask("hi", tools=TOOLS, tool_choice=LOOK, max_tokens=5)
            reply = await client.chat.completions.create(**body)
            content = reply.choices[0].message.content
            await client.chat.completions.create(**ask("hi", content, "go on", tools=TOOLS))
        first, second = await setup.journal.calls(session.id)
    assert (content, reply.choices[0].finish_reason) == (call_opening("look") + ' {"at', "length")
    assert (second.parent_id, second.fork_reason) == (first.id, None)


async def test_a_forced_call_that_is_cut_short_keeps_arguments_that_are_no_object(tmp_path):
    async with serving(tmp_path, REST) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            body = ask("hi", tools=TOOLS, tool_choice=LOOK, max_tokens=5)
            (choice,) = (await client.chat.completions.create(**body)).choices
            (call,) = choice.message.tool_calls
            told = choice.message.model_dump(exclude_none=True)
            result = {"role": "tool", "tool_call_id": call.id, "content": "no JSON"}
            body["messages"] += [told, result]
            await client.chat.completions.create(**body)
        first, second = await setup.journal.calls(session.id)
    assert (call.function.arguments, choice.finish_reason) == ('{"at', "length")
    assert (second.parent_id, second.fork_reason) == (first.id, None)


async def test_the_length_of_a_prompt_counts_what_begins_the_reply(tmp_path):
    async with serving(tmp_path) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            body = {"model": "m", "input": "hi"}
            body |= {"tools": [{"type": "function", "name": "look", "parameters": {}}]}
            free = await client.responses.input_tokens.count(**body)
            forced = await client.responses.input_tokens.count(**body, tool_choice="required")
    assert forced.input_tokens == free.input_tokens + len(opening("look"))


class Unopened(ByteRenderer):
    """A model whose form of a call is not known."""

    def call_opening(self, name):
        return None


class Rendering(ByteEngine):
    """An engine that makes prompts."""

    async def probe(self):
        return Capabilities("bytes", self.max_context, True, True, True, renders=True)


@pytest.mark.parametrize(
    ("engine", "renderer", "reason"),
    [
        (ByteEngine, Unopened, "how this model begins a call is not known"),
        (Rendering, ByteRenderer, "the engine makes the prompt"),
    ],
)
async def test_where_a_call_cannot_be_begun_it_is_refused_by_name(
    tmp_path, engine, renderer, reason
):
    async with serving(tmp_path) as setup:
        session = await setup.open()
        gateway = Gateway(engine(), renderer(), setup.journal)
        async with gateway.serve() as address:
            await gateway.open(session, SessionPolicy())
            client = openai.AsyncOpenAI(
                base_url=f"{address.url}/v1",
                api_key=session.key,
                max_retries=0,
                http_client=setup.http(),
            )
            async with client:
                with pytest.raises(openai.BadRequestError, match=reason) as caught:
                    await client.chat.completions.create(
                        **ask("hi", tools=TOOLS, tool_choice="required")
                    )
    assert caught.value.param == "tool_choice"
