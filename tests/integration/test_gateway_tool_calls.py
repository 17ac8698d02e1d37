"""Tool calls that flow to the harness, and what becomes of those that prove broken."""

import json

import pytest
from gateway_support import Hold, ask, serving
from openai.types.chat.chat_completion import Choice

from polar import trajectory
from polar.gateway import SessionPolicy

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
SAMPLED = '{"command": "ls"'
"""Its arguments, but for the brace that waits for the end of the block."""
BROKEN = {
    "cut": (CALL[: CALL.index('"}}') + 1], "length"),
    "no end": (CALL.replace("}}", "}"), "tool_calls"),
    "more behind it": (CALL.replace("}}", "}}}"), "tool_calls"),
}
"""What is sampled -> and how the reply finishes."""


async def test_arguments_reach_the_client_while_they_are_sampled(tmp_path):
    hold, at = Hold(), CALL.index("}}")
    async with serving(tmp_path, [CALL[:at], hold, CALL[at:]]) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            told = ""
            stream = await client.chat.completions.create(**ask("hi", tools=[TOOL]), stream=True)
            async for chunk in stream:
                for choice in chunk.choices:
                    for call in choice.delta.tool_calls or ():
                        told += call.function.arguments
                if told == SAMPLED:
                    hold.released.set()  # nothing would come otherwise
    assert told == SAMPLED + "}"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", BROKEN)
async def test_a_call_that_proves_broken_is_no_object_and_its_conversation_one_chain(
    tmp_path, case, stream
):
    text, finished = BROKEN[case]
    async with serving(tmp_path, text, "so it was") as setup:
        session = await setup.open()
        limit = len(text) if finished == "length" else 1000
        async with setup.client(session) as client:
            body = ask("hi", tools=[TOOL], max_tokens=limit)
            choice = await _ask(client, body, stream=stream)
            (called,) = choice.message.tool_calls
            result = {"role": "tool", "tool_call_id": called.id, "content": "no JSON"}
            said = choice.message.model_dump(exclude_none=True)
            await client.chat.completions.create(
                **body | {"messages": [*body["messages"], said, result]}
            )
        calls = await setup.journal.calls(session.id)
        assert setup.gateway.usage(session.id).forks == {}
    assert (called.function.name, called.function.arguments) == ("bash", SAMPLED)
    assert (choice.finish_reason, choice.message.content or "") == (finished, "")
    assert calls[1].parent_id == calls[0].id
    report = trajectory.check(calls, trajectory.build(calls))
    assert (report.traces, report.kept) == (1, report.sampled)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", BROKEN)
async def test_a_harness_that_mends_calls_is_given_a_broken_one_as_text(tmp_path, case, stream):
    text, finished = BROKEN[case]
    async with serving(tmp_path, text) as setup:
        session = await setup.open(SessionPolicy(whole_calls=True))
        limit = len(text) if finished == "length" else 1000
        async with setup.client(session) as client:
            body = ask("hi", tools=[TOOL], max_tokens=limit)
            choice = await _ask(client, body, stream=stream)
    assert choice.message.tool_calls in (None, [])
    assert choice.message.content == text
    assert choice.finish_reason == ("length" if finished == "length" else "stop")


async def _ask(client, body, *, stream):
    """Ask, and put a stream together as a client does that reads no arguments."""
    if not stream:
        return (await client.chat.completions.create(**body)).choices[0]
    events = await client.chat.completions.create(**body, stream=True)
    content, call, finish = "", None, None
    async for event in events:
        (choice,) = event.choices
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for each in choice.delta.tool_calls or ():
            if call is None:
                call = each.model_dump()
            else:
                call["function"]["arguments"] += each.function.arguments
    message = {"role": "assistant", "content": content, "tool_calls": [call] if call else None}
    whole = {"index": 0, "message": message, "finish_reason": finish}
    return Choice.model_validate_json(json.dumps(whole))
