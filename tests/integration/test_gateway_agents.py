"""Agents that the model started and that no header tells apart: each has its own reply."""

import asyncio
from contextlib import asynccontextmanager

from gateway_support import Hold, ask, serving

from polar.gateway import GatewaySettings, SessionPolicy

ERRAND = "look around"
START = f'<tool_call>{{"name": "agent", "arguments": {{"prompt": "{ERRAND}"}}}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "agent", "parameters": {"type": "object"}}}


def kind_of(chat, headers):
    return "subagent" if not chat.tools else "main"


@asynccontextmanager
async def started(tmp_path, replies, *scripts, **settings):
    """Let the main agent start agents by its replies, and give a client that opens as they do."""
    settings = GatewaySettings(**settings)
    async with serving(tmp_path, *replies, *scripts, settings=settings) as setup:
        session = await setup.open(SessionPolicy(kind_of=kind_of, agent_tool=("agent", "prompt")))
        async with setup.client(session) as client:
            for number in range(len(replies)):
                await client.chat.completions.create(**ask(f"task {number}", tools=[TOOL]))

            async def opened(text=ERRAND):
                reply = await client.chat.completions.create(**ask(text))
                return reply.choices[0].message.content

            yield setup, session, opened


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - counts have no event to wait for
            await asyncio.sleep(0.001)


async def test_as_many_identical_openings_as_were_started_are_calls_and_one_more_is_a_retry(
    tmp_path,
):
    one, two = Hold(), Hold()
    async with started(tmp_path, [START * 2], [one, "one"], [two, "two"]) as (setup, session, ask_):
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ask_())
            await one.reached.wait()
            second = group.create_task(ask_())
            await two.reached.wait()
            third = group.create_task(ask_())
            await until(lambda: setup.gateway.usage(session.id).coalesced_requests == 1)
            one.released.set()
            two.released.set()
        assert (first.result(), second.result(), third.result()) == ("one", "two", "one")
        assert len(await setup.journal.calls(session.id)) == 3


async def test_an_agent_that_has_its_reply_is_not_expected_again(tmp_path):
    hold = Hold()
    async with started(tmp_path, [START * 2], "one", [hold, "two"]) as (setup, session, ask_):
        assert await ask_() == "one"
        async with asyncio.TaskGroup() as group:
            second = group.create_task(ask_())
            await hold.reached.wait()
            retry = group.create_task(ask_())
            await until(lambda: setup.gateway.usage(session.id).coalesced_requests == 1)
            hold.released.set()
        assert (second.result(), retry.result()) == ("two", "two")


async def test_agents_started_by_two_replies_are_expected_together(tmp_path):
    one, two = Hold(), Hold()
    scripts = ([one, "one"], [two, "two"])
    async with started(tmp_path, [START, START], *scripts) as (_, _session, ask_):
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ask_())
            await one.reached.wait()
            second = group.create_task(ask_())
            await two.reached.wait()
            one.released.set()
            two.released.set()
        assert (first.result(), second.result()) == ("one", "two")


async def test_a_retry_takes_over_what_its_agent_left_and_not_the_place_of_another(tmp_path):
    one, two = Hold(), Hold()
    scripts = ([one, "one"], [two, "two"])
    async with started(tmp_path, [START * 2], *scripts, disconnect_grace_s=30) as (
        setup,
        session,
        ask_,
    ):
        leaving = asyncio.create_task(ask_())
        await one.reached.wait()
        leaving.cancel()
        await asyncio.wait([leaving])
        (running,) = setup.gateway._by_id[session.id]._running
        await until(lambda: running.feed.deserted)
        async with asyncio.TaskGroup() as group:
            retry = group.create_task(ask_())
            await until(lambda: setup.gateway.usage(session.id).coalesced_requests == 1)
            other = group.create_task(ask_())
            await two.reached.wait()
            one.released.set()
            two.released.set()
        assert (retry.result(), other.result()) == ("one", "two")


async def test_another_errand_or_another_tool_opens_no_place(tmp_path):
    hold = Hold()
    longer = START.replace(ERRAND, f"{ERRAND} twice")
    scripted = [START.replace('"agent"', '"shell"') + START + longer]
    async with started(tmp_path, scripted, [hold, "one"]) as (setup, session, ask_):
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ask_())
            await hold.reached.wait()
            retry = group.create_task(ask_())
            await until(lambda: setup.gateway.usage(session.id).coalesced_requests == 1)
            hold.released.set()
        assert (first.result(), retry.result()) == ("one", "one")
