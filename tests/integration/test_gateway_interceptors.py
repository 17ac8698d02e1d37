"""Requests that the model sees otherwise than they were sent: on record, spliced, refused."""

import json

import anthropic
import openai
import pytest
from gateway_support import START, ByteEngine, ByteRenderer, ask, serving

from polar import trajectory
from polar.engines.base import Capabilities
from polar.gateway import Gateway, GatewaySettings, SessionPolicy
from polar.types import Message


def settings(*interceptors, **fields):
    return GatewaySettings(interceptors=interceptors, **fields)


ADD = {"name": "system_prompt", "settings": {"text": "Be kind."}}


def written(tmp_path, code: str) -> dict[str, str]:
    (tmp_path / "mine.py").write_text(code)
    return {"python": f"{tmp_path / 'mine.py'}:rewrite"}


async def converse(client, count, *, size=0):
    """Make so many turns, each with a tool call and its result."""
    messages = [{"role": "user", "content": "go"}]
    for number in range(count):
        reply = await client.chat.completions.create(model="gpt", messages=messages)
        said = reply.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        messages.append(
            {
                "role": "tool",
                "tool_call_id": said.tool_calls[0].id,
                "content": f"result {number} " + "x" * size,
            }
        )
    return messages


def tool_turn(number):
    call = json.dumps({"name": "bash", "arguments": {"n": number}})
    return f"<tool_call>\n{call}\n</tool_call>"


async def test_both_what_was_sent_and_what_the_model_saw_are_on_record(tmp_path):
    async with serving(tmp_path, "hello", settings=settings(ADD)) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            await client.chat.completions.create(**ask("hi"))
        (call,) = await setup.journal.calls(session.id)
        assert call.messages == (Message("system", "Be kind."), Message("user", "hi"))
        assert call.sent.messages == (Message("user", "hi"),)
        assert call.sent.interceptors == ("system_prompt",)
        assert b"Be kind." in bytes(t for t in call.prompt_ids.tolist() if t < START)


async def test_what_no_interceptor_changes_is_stored_as_ever(tmp_path):
    quiet = {"name": "history"}
    async with serving(tmp_path, "hello", settings=settings(quiet)) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            await client.chat.completions.create(**ask("hi"))
        (call,) = await setup.journal.calls(session.id)
        assert call.sent is None


async def test_a_conversation_stays_one_chain_under_an_interceptor_that_is_prefix_stable(tmp_path):
    scripts = [tool_turn(number) for number in range(4)]
    async with serving(tmp_path, *scripts, settings=settings(ADD)) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            await converse(client, 4)
        calls = await setup.journal.calls(session.id)
        assert [call.fork_reason for call in calls] == [None] * 4
        assert [call.parent_id for call in calls[1:]] == [call.id for call in calls[:-1]]
        built = trajectory.build(calls)
        assert trajectory.check(calls, built).traces == 1


async def test_history_forks_once_in_so_many_results_and_no_token_is_lost(tmp_path):
    shorten = {"name": "history", "settings": {"keep_last": 1, "step": 3, "head_chars": 10}}
    scripts = [tool_turn(number) for number in range(8)]
    async with serving(tmp_path, *scripts, settings=settings(shorten)) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            await converse(client, 8, size=2000)
        calls = await setup.journal.calls(session.id)
        forks = [call.index for call in calls if call.fork_reason is not None]
        assert forks == [4, 7]
        assert all("left out" not in m.content for m in calls[-1].sent.messages)
        assert sum("left out" in m.content for m in calls[-1].messages) == 6
        built = trajectory.build(calls)
        assert built.report.kept == built.report.sampled
        assert trajectory.check(calls, built).traces == 3


async def test_a_continued_response_is_intercepted_from_what_was_sent(tmp_path):
    async with serving(tmp_path, "one", "two", settings=settings(ADD)) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            first = await client.responses.create(model="gpt", input="hi")
            await client.responses.create(model="gpt", input="more", previous_response_id=first.id)
        before, after = await setup.journal.calls(session.id)
        assert after.parent_id == before.id
        assert [m.content for m in after.messages] == ["Be kind.", "hi", "one", "more"]
        assert [m.content for m in after.sent.messages] == ["hi", "one", "more"]


async def test_tokens_are_counted_as_the_model_will_see_them(tmp_path):
    async with serving(tmp_path, "x", settings=settings(ADD)) as setup:
        session = await setup.open()
        async with _anthropic(setup, session) as client:
            messages = [{"role": "user", "content": "hi"}]
            count = await client.messages.count_tokens(model="m", messages=messages)
            reply = await client.messages.create(model="m", messages=messages, max_tokens=9)
        assert count.input_tokens == reply.usage.input_tokens


async def test_an_interceptor_that_breaks_is_an_error_in_openais_form_and_counted(tmp_path):
    broken = written(tmp_path, "def rewrite(chat):\n    raise KeyError('lost')\n")
    async with serving(tmp_path, settings=settings(broken)) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            for stream in (False, True):
                with pytest.raises(openai.InternalServerError, match="KeyError"):
                    await client.chat.completions.create(**ask("hi"), stream=stream)
        assert setup.gateway.usage(session.id).refused_by_interceptors == 2
        assert setup.gateway.usage(session.id).calls == 0
        assert setup.engine.requests == []
        assert setup.gateway.failure is None


async def test_an_interceptor_that_breaks_is_an_error_in_anthropics_form(tmp_path, caplog):
    broken = written(tmp_path, "def rewrite(chat):\n    return None\n")
    async with serving(tmp_path, settings=settings(broken)) as setup:
        session = await setup.open()
        async with _anthropic(setup, session) as client:
            with pytest.raises(anthropic.InternalServerError, match="no Chat"):
                await client.messages.create(
                    model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
                )
        assert session.key not in caplog.text


async def test_an_interceptor_that_breaks_once_loses_nothing_of_the_conversation(tmp_path):
    once = written(
        tmp_path,
        "broken = []\n"
        "def rewrite(chat):\n"
        "    if len(chat.messages) == 3 and not broken:\n"
        "        broken.append(1)\n"
        "        raise ValueError\n"
        "    return chat\n",
    )
    async with serving(tmp_path, "one", "two", settings=settings(once)) as setup:
        session = await setup.open(SessionPolicy(max_calls=2))
        async with setup.client(session) as client:
            await client.chat.completions.create(**ask("hi"))
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(**ask("hi", "one", "go on"))
            await client.chat.completions.create(**ask("hi", "one", "go on"))
        first, second = await setup.journal.calls(session.id)
        assert (second.parent_id, second.fork_reason, second.index) == (first.id, None, 1)


def _anthropic(setup, session):
    base_url = f"{setup.url}/s/{session.key}"
    return anthropic.AsyncAnthropic(base_url=base_url, api_key=session.key, max_retries=0)


class _TwoModels(ByteEngine):
    async def probe(self):
        return Capabilities("bytes", 1000, True, True, True, other_models=("adapter",))


async def test_another_model_is_asked_where_it_is_chosen_and_never_trained_on(tmp_path):
    choose = {"name": "model_choice", "settings": {"models": {"*-mini": "adapter"}}}
    async with serving(tmp_path) as setup:
        engine = _TwoModels("a", "b")
        gateway = Gateway(engine, ByteRenderer(), setup.journal, settings(choose))
        session = await setup.open()
        async with gateway.serve() as address:
            await gateway.open(session, SessionPolicy())
            setup.url = address.url
            async with setup.client(session) as client:
                reply = await client.chat.completions.create(**ask("hi") | {"model": "x-mini"})
                assert reply.model == "x-mini"
                await client.chat.completions.create(**ask("hi", "a", "more") | {"model": "x"})
        assert [request.model for request in engine.requests] == ["adapter", None]
        other, own = await setup.journal.calls(session.id)
        assert (other.kind, other.sent.model, other.sent.chosen_model) == (
            "auxiliary",
            "x-mini",
            "adapter",
        )
        assert (own.kind, own.sent, own.parent_id) == ("main", None, other.id)
        assert trajectory.build([other, own]).report.dropped == {"kind_auxiliary": 2}


async def test_a_chosen_model_that_is_not_served_is_refused_by_name(tmp_path):
    choose = {"name": "model_choice", "settings": {"models": {"*": "big"}}}
    async with serving(tmp_path, settings=settings(choose)) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            with pytest.raises(openai.BadRequestError, match="does not serve the model 'big'"):
                await client.chat.completions.create(**ask("hi"))
        assert setup.engine.requests == []
