"""Real requests over loopback: what the harness gets and what goes on record."""

import asyncio
import itertools

import numpy as np
import openai
import pytest
from gateway_support import END, Hold, ask, serving

from polar import trajectory
from polar.errors import EngineError
from polar.gateway import GatewaySettings, SessionPolicy

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'


async def test_a_reply_reaches_the_client_and_is_on_record(tmp_path):
    async with serving(tmp_path, "hello") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            reply = await client.chat.completions.create(**ask("hi"))
        assert reply.choices[0].message.content == "hello"
        assert reply.choices[0].finish_reason == "stop"
        assert reply.model == "m"
        (call,) = await setup.journal.calls(session.id)
        assert call.sampled_ids.tolist() == [*b"hello", END]
        assert reply.usage.prompt_tokens == len(call.prompt_ids)
        assert reply.usage.completion_tokens == 6
        assert call.weight_versions.tolist() == [7] * 6
        assert call.prompt_ids.tolist() == list(setup.engine.requests[0].prompt_ids)


async def test_a_stream_says_the_same_as_a_whole_reply(tmp_path):
    text = f"<think>so</think>look: {CALL}"
    async with serving(tmp_path, text, text) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            body = ask("hi", tools=[TOOL])
            whole = await client.chat.completions.create(**body)
            async with client.chat.completions.stream(
                **body, stream_options={"include_usage": True}
            ) as stream:
                streamed = await stream.get_final_completion()
    ours, theirs = whole.choices[0], streamed.choices[0]
    assert ours.finish_reason == theirs.finish_reason == "tool_calls"
    assert ours.message.content == theirs.message.content == "look:"
    assert ours.message.reasoning_content == theirs.message.reasoning_content == "so"
    assert ours.message.tool_calls[0].function.arguments == '{"command": "ls"}'
    assert theirs.message.tool_calls[0].function.arguments == '{"command": "ls"}'
    assert whole.usage.completion_tokens == streamed.usage.completion_tokens


async def test_a_tool_conversation_is_one_chain_that_the_fidelity_check_accepts(tmp_path):
    async with serving(tmp_path, CALL, "more " + CALL, "done") as setup:
        session = await setup.open()
        messages = [{"role": "user", "content": "list"}]
        async with setup.client(session) as client:
            for _ in range(3):
                reply = await client.chat.completions.create(
                    model="m", messages=messages, tools=[TOOL]
                )
                message = reply.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                messages += [
                    {"role": "tool", "tool_call_id": call.id, "content": "a.txt"}
                    for call in message.tool_calls or ()
                ]
        calls = await setup.journal.calls(session.id)
        assert [call.parent_id for call in calls] == [None, calls[0].id, calls[1].id]
        for parent, call in itertools.pairwise(calls):
            context = np.concatenate([parent.prompt_ids, parent.sampled_ids])
            assert call.prompt_ids[: len(context)].tolist() == context.tolist()
        built = trajectory.build(calls)
        report = trajectory.check(calls, built)
        assert (report.traces, report.kept) == (1, report.sampled)
        assert setup.gateway.usage(session.id).forks == {}


async def test_an_edited_turn_forks_with_a_counted_reason(tmp_path):
    async with serving(tmp_path, "first", "second") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            await client.chat.completions.create(**ask("hi"))
            await client.chat.completions.create(**ask("hi", "I never said so", "go on"))
        assert setup.gateway.usage(session.id).forks == {"edited_message": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_cuts_the_text_and_ends_the_sampling(tmp_path, stream):
    async with serving(tmp_path, "one\nObservation: made up", "two") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            body = ask("hi", stop=["\nObs", "never"])
            if stream:
                async with client.chat.completions.stream(**body) as events:
                    reply = await events.get_final_completion()
            else:
                reply = await client.chat.completions.create(**body)
            assert reply.choices[0].message.content == "one"
            assert reply.choices[0].finish_reason == "stop"
            await client.chat.completions.create(**ask("hi", "one", "go on"))
        first, second = await setup.journal.calls(session.id)
        assert bytes(first.sampled_ids.tolist()) == b"one\nObs"
        assert first.reply.content == "one"
        assert (second.parent_id, second.fork_reason) == (None, "edited_message")


async def test_what_is_cut_by_length_says_so(tmp_path):
    async with serving(tmp_path, "abcdef", max_context=100) as setup:
        session = await setup.open(SessionPolicy(max_tokens=3))
        async with setup.client(session) as client:
            reply = await client.chat.completions.create(**ask("hi", max_tokens=32_000))
        assert reply.choices[0].message.content == "abc"
        assert reply.choices[0].finish_reason == "length"


async def test_max_tokens_are_clamped_to_the_context_window(tmp_path):
    async with serving(tmp_path, "abcdef", max_context=50) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            await client.chat.completions.create(**ask("hi", max_tokens=32_000))
        request = setup.engine.requests[0]
        assert len(request.prompt_ids) + request.sampling.max_tokens == 50


async def test_a_prompt_beyond_the_context_window_is_the_providers_error(tmp_path):
    async with serving(tmp_path, max_context=20) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(**ask("x" * 50))
        assert caught.value.code == "context_length_exceeded"
        assert setup.engine.requests == []


async def test_pinned_sampling_overrules_the_harness(tmp_path):
    async with serving(tmp_path, "a", "b") as setup:
        pinned = await setup.open(SessionPolicy(temperature=1.0, top_p=0.9))
        own = await setup.open()
        for session in (pinned, own):
            async with setup.client(session) as client:
                await client.chat.completions.create(**ask("hi", temperature=0.2, top_p=0.5))
        used = [(r.sampling.temperature, r.sampling.top_p) for r in setup.engine.requests]
        assert used == [(1.0, 0.9), (0.2, 0.5)]
        (call,) = await setup.journal.calls(pinned.id)
        assert call.sampling.temperature == 1.0


async def test_a_nucleus_of_nothing_is_the_likeliest_token_in_a_form_that_engines_take(tmp_path):
    """vLLM refuses a top_p of 0, which OpenAI's format allows: harnesses tried again for ever."""
    async with serving(tmp_path, "a", "b") as setup:
        session, pinned = await setup.open(), await setup.open(SessionPolicy(top_p=0.9))
        for each in (session, pinned):
            async with setup.client(each) as client:
                await client.chat.completions.create(**ask("hi", top_p=0))
        used = [(r.sampling.top_p, r.sampling.top_k) for r in setup.engine.requests]
        (call,) = await setup.journal.calls(session.id)
    assert used == [(1.0, 1), (0.9, None)]
    assert (call.sampling.top_p, call.sampling.top_k) == (1.0, 1)


TURN = {"role": "user", "content": "hi"}
TOP_K = {
    "/v1/chat/completions": {"model": "m", "messages": [TURN], "top_k": 5},
    "/v1/messages": {"model": "m", "messages": [TURN], "max_tokens": 9, "top_k": 5},
    "/v1beta/models/m:generateContent": {
        "contents": [{"parts": [{"text": "hi"}]}],
        "generationConfig": {"topK": 5},
    },
}


@pytest.mark.parametrize("path", TOP_K)
async def test_top_k_is_pinned_in_every_format_that_has_it_and_recorded_as_applied(tmp_path, path):
    policies = (SessionPolicy(), SessionPolicy(top_k="all"), SessionPolicy(top_k=2))
    async with serving(tmp_path) as setup, setup.http() as http:
        sessions = [await setup.open(policy) for policy in policies]
        for session in sessions:
            answer = await http.post(f"/s/{session.key}{path}", json=TOP_K[path])
            assert answer.status_code == 200
        assert [request.sampling.top_k for request in setup.engine.requests] == [5, None, 2]
        calls = [call for session in sessions for call in await setup.journal.calls(session.id)]
        assert [call.sampling.top_k for call in calls] == [5, None, 2]


async def test_the_call_after_the_last_allowed_one_is_refused(tmp_path):
    async with serving(tmp_path) as setup:
        session = await setup.open(SessionPolicy(max_calls=1))
        async with setup.client(session) as client:
            await client.chat.completions.create(**ask("one"))
            with pytest.raises(openai.BadRequestError, match="call limit reached"):
                await client.chat.completions.create(**ask("two"))


async def test_kinds_of_calls_are_told_apart_and_foreign_ones_counted(tmp_path):
    def kind_of(chat, headers):
        return "main" if headers["user-agent"].startswith("AsyncOpenAI") else "foreign"

    async with serving(tmp_path) as setup:
        session = await setup.open(SessionPolicy(kind_of=kind_of))
        async with setup.client(session) as client:
            await client.chat.completions.create(**ask("one"))
        async with setup.http() as http:
            await http.post(f"/s/{session.key}/v1/chat/completions", json=ask("mine"))
        assert [c.kind for c in await setup.journal.calls(session.id)] == ["main", "foreign"]
        assert setup.gateway.usage(session.id).foreign_calls == 1


async def test_an_engine_failure_is_a_503_with_retry_after_and_stays_on_record(tmp_path):
    async with serving(tmp_path, ["ab", EngineError("out of memory")], "fine") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(**ask("hi"))
            assert caught.value.status_code == 503
            assert caught.value.response.headers["retry-after"] == "2"
            await client.chat.completions.create(**ask("hi"))
        broken, again = await setup.journal.calls(session.id)
        assert (broken.finish_reason, broken.sampled_ids.tolist()) == ("error", [*b"ab"])
        assert again.fork_reason == "retry"
        assert setup.gateway.usage(session.id).unfinished_calls == 1


async def test_an_unexpected_exception_of_the_engine_is_a_500_and_logged(tmp_path, caplog):
    async with serving(tmp_path, [ZeroDivisionError("bug")]) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            with pytest.raises(openai.InternalServerError, match="failed unexpectedly"):
                await client.chat.completions.create(**ask("hi"))
        assert "ZeroDivisionError" in caplog.text
        assert session.key not in caplog.text


async def test_an_engine_that_falls_silent_is_given_up(tmp_path):
    settings = GatewaySettings(engine_timeout_s=0.05)
    async with serving(tmp_path, ["ab", Hold()], settings=settings) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            with pytest.raises(openai.InternalServerError, match="no token in time"):
                await client.chat.completions.create(**ask("hi"))
        assert len(setup.engine.cancelled) == 1


async def test_fifty_sessions_at_once_stay_apart(tmp_path):
    async with serving(tmp_path) as setup:
        sessions = [await setup.open() for _ in range(50)]

        async def converse(session, number):
            messages = [{"role": "user", "content": f"session {number} " + "x" * number}]
            async with setup.client(session) as client:
                for _ in range(3):
                    reply = await client.chat.completions.create(model="m", messages=messages)
                    messages += [
                        {"role": "assistant", "content": reply.choices[0].message.content},
                        {"role": "user", "content": f"go on {number}"},
                    ]
            return messages

        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(converse(session, number))
                for number, session in enumerate(sessions)
            ]
        for session, done in zip(sessions, running, strict=True):
            calls = await setup.journal.calls(session.id)
            assert [call.index for call in calls] == [0, 1, 2]
            said = [message.content for message in (*calls[-1].messages, calls[-1].reply)]
            assert said == [message["content"] for message in done.result()[:-1]]
            assert trajectory.check(calls, trajectory.build(calls)).traces == 1
