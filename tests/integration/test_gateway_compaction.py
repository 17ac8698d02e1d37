"""Summaries that Responses clients ask for, by a path or by an item, and go on from."""

import openai
import pytest
from gateway_support import serving

from polar import trajectory
from polar.gateway import SessionPolicy

CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
TOOLS = [{"type": "function", "name": "bash", "parameters": {"type": "object"}}]
SUMMARY = "They want a list.\nThe folder is empty: é."


def as_sent(output) -> list[dict]:
    """Give items as a client sends them back; its model of them has no messages of the user."""
    return [item.to_dict(warnings=False) for item in output]


async def worked(client) -> list[dict]:
    """Work for a turn, and give the history so far."""
    history = [{"role": "developer", "content": "be good"}, {"role": "user", "content": "list"}]
    reply = await client.responses.create(model="m", input=history, tools=TOOLS, store=False)
    (call,) = reply.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "nothing"}
    return [*history, call.to_dict(), result]


async def test_a_conversation_goes_on_from_its_summary_which_is_a_call_of_its_own_kind(tmp_path):
    scripts = (CALL, f"<think>hm</think>{SUMMARY}", "going on", "still")
    async with serving(tmp_path, *scripts) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            history = await worked(client)
            made = await client.responses.compact(
                model="m", input=history, extra_body={"tools": TOOLS}
            )
            kept = as_sent(made.output)
            asked = {"role": "user", "content": "now what"}
            reply = await client.responses.create(model="m", input=[*kept, asked], store=False)
            turn = [item.to_dict() for item in reply.output]
            again = [*kept, asked, *turn, {"role": "user", "content": "and"}]
            await client.responses.create(model="m", input=again, store=False)
        calls = await setup.journal.calls(session.id)
    assert made.object == "response.compaction"
    assert [item["type"] for item in kept] == ["message", "message", "compaction"]
    assert [item.get("role") for item in kept] == ["developer", "user", None]
    assert SUMMARY not in kept[-1]["encrypted_content"]
    assert made.usage.input_tokens == len(calls[1].prompt_ids)
    assert made.usage.output_tokens == len(calls[1].sampled_ids)
    assert [call.kind for call in calls] == ["main", "compaction", "main", "main"]
    # The summary was asked for at the end of the conversation; what went on from it forks.
    assert [call.parent_id for call in calls] == [None, calls[0].id, None, calls[2].id]
    assert [call.fork_reason for call in calls[1:]] == [None, "compaction", None]
    assert [message.role for message in calls[2].messages] == ["system", "user", "user", "user"]
    assert calls[2].messages[2].content.endswith(SUMMARY)
    report = trajectory.build(calls).report
    assert report.dropped == {"kind_compaction": len(calls[1].sampled_ids)}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_item_asks_for_a_summary_in_place_of_a_reply(tmp_path, stream):
    async with serving(tmp_path, CALL, SUMMARY, "on") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            history = await worked(client)
            body = {"input": [*history, {"type": "compaction_trigger"}], "tools": TOOLS}
            made = await client.responses.create(model="m", stream=stream, **body)
            if stream:
                events = [event async for event in made]
                done = [event for event in events if event.type == "response.output_item.done"]
                assert "response.output_text.delta" not in {event.type for event in events}
                assert len(done) == 1
                made = events[-1].response
            (item,) = made.output
            with pytest.raises(openai.BadRequestError, match="was not found"):
                await client.responses.create(model="m", input="x", previous_response_id=made.id)
            # As Codex names it, too.
            summary = {**item.to_dict(), "type": "compaction_summary"}
            await client.responses.create(model="m", input=[summary])
        calls = await setup.journal.calls(session.id)
    assert (made.status, item.type) == ("completed", "compaction")
    assert [call.kind for call in calls] == ["main", "compaction", "main"]
    assert calls[2].messages[0].content.endswith(SUMMARY)


async def test_a_stored_conversation_is_summarised_by_its_id(tmp_path):
    async with serving(tmp_path, "first", SUMMARY, "second") as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            first = await client.responses.create(model="m", input="go", instructions="once")
            made = await client.responses.compact(
                model="m", previous_response_id=first.id, instructions="now"
            )
            kept = as_sent(made.output)
            again = await client.responses.compact(model="m", input=kept)
        calls = await setup.journal.calls(session.id)
    assert [part["text"] for item in kept[:-1] for part in item["content"]] == ["go"]
    assert [message.role for message in calls[1].messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert [item.type for item in again.output] == ["message", "compaction"]


async def test_the_agents_own_commands_make_no_compaction(tmp_path):
    async with serving(tmp_path, SUMMARY) as setup:
        session = await setup.open(SessionPolicy(kind_of=lambda chat, headers: "foreign"))
        async with setup.client(session) as client:
            await client.responses.compact(model="m", input="hi")
        (call,) = await setup.journal.calls(session.id)
    assert call.kind == "foreign"


@pytest.mark.parametrize(
    ("items", "where"),
    [
        ([{"type": "compaction", "encrypted_content": "gAAAAABk"}], "input[0].encrypted_content"),
        ([{"type": "compaction", "encrypted_content": "polar-x"}], "input[0].encrypted_content"),
        ([{"type": "compaction"}], "input[0].encrypted_content"),
        ([{"type": "compaction_trigger"}, {"role": "user", "content": "x"}], "input"),
    ],
)
async def test_what_is_no_summary_of_ours_is_refused_where_it_is(tmp_path, items, where):
    async with serving(tmp_path) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model="m", input=items)
        assert not await setup.journal.calls(session.id)
    assert caught.value.param == where
