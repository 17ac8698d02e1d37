"""Whole conversations through the providers' own clients: nothing is lost, added or doubled."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import hypothesis.strategies as st
import pytest
from gateway_support import END, ByteEngine, ByteRenderer, Setup, ask, serving
from hypothesis import HealthCheck, Phase, given, settings
from sdk_clients import CLIENTS, NAMES, Turn, client_of

from polar import trajectory
from polar.engines.base import Chunk
from polar.gateway import Gateway, SessionPolicy
from polar.types import Call

SETTINGS = settings(
    max_examples=12,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[*HealthCheck],
)
"""An example takes tens of milliseconds: too many for shrinking."""

texts = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=12).map(str.strip)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts
arguments = st.dictionaries(texts, scalars | st.lists(scalars, max_size=2), max_size=3)


@dataclass(frozen=True)
class Sampled:
    """A reply as the model samples it, and what the harness does then."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, dict], ...]
    ascii_only: bool
    cuts: tuple[int, ...]
    """Tokens in each of the engine's chunks; what is left comes one by one."""
    answer: tuple[str, bool]
    """What the tools or the user say to it, and whether that is an error."""

    @property
    def text(self) -> str:
        blocks = [
            json.dumps({"name": name, "arguments": found}, ensure_ascii=self.ascii_only)
            for name, found in self.calls
        ]
        calls = "\n".join(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)
        return f"<think>\n{self.reasoning}\n</think>\n\n{self.content}\n{calls}".rstrip()


@dataclass(frozen=True)
class Conversing:
    """What conversations stand on."""

    serving: Setup
    gateway: Gateway
    engine: "CutEngine"
    url: str


@st.composite
def replies(draw) -> Sampled:
    calls = st.lists(st.tuples(st.sampled_from(NAMES), arguments), max_size=3)
    called = tuple(draw(calls))
    return Sampled(
        draw(texts),
        draw(texts if called else texts.filter(bool)),
        called,
        draw(st.booleans()),
        tuple(draw(st.lists(st.integers(1, 40), max_size=12))),
        (draw(texts.filter(bool)), draw(st.booleans())),
    )


class CutEngine(ByteEngine):
    """Samples scripts in chunks of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[Sampled] = []

    async def sample(self, request):
        reply = self.replies.pop(0)
        tokens, cuts = [*reply.text.encode(), END], list(reply.cuts)
        while tokens:
            size = cuts.pop(0) if cuts else 1
            part, tokens = tokens[:size], tokens[size:]
            logprobs = tuple(-1.0 - token for token in part)
            yield Chunk(tuple(part), logprobs, self.version, None if tokens else "stop")


async def converse(client, setup: Conversing, said: list[Sampled], *, stream: bool):
    """Have a conversation; return what the client saw of it and what is on record."""
    session = await setup.serving.open()
    await setup.gateway.open(session, SessionPolicy())
    setup.engine.replies = list(said)
    history, turns = client.said("begin"), []
    for reply in said:
        turn = await client.ask(session.key, history, stream=stream)
        text, is_error = reply.answer
        results = [(call, f"{text} {n}", is_error) for n, call in enumerate(turn.calls)]
        follows = client.results(results) if results else client.said(text)
        history = [*history, *turn.items, *follows]
        turns.append(turn)
    await setup.gateway.close(session.id)
    return turns, await setup.serving.journal.calls(session.id)


def check_turn(turn: Turn, sampled: Sampled, call: Call, finished: tuple[str, str]) -> None:
    """A client saw what was sampled, and was told how many tokens that was."""
    assert (turn.content, turn.reasoning) == (sampled.content, sampled.reasoning)
    assert [made[1:] for made in turn.calls] == list(sampled.calls)
    assert turn.usage == (len(call.prompt_ids), len(call.sampled_ids))
    assert turn.finish == finished[bool(sampled.calls)]
    assert call.sampled_ids.tolist() == [*sampled.text.encode(), END]
    assert call.logprobs.tolist() == [-1.0 - token for token in call.sampled_ids]


def results_of(said: list[Sampled]) -> list[str]:
    """What a model is to see of the results that tools gave."""
    answers = [(each.answer, n) for each in said for n, _ in enumerate(each.calls)]
    return [f"{'Error: ' if bad else ''}{text} {n}" for (text, bad), n in answers]


def results_in(call: Call) -> list[str]:
    """What the model saw of them."""
    return [message.content for message in call.messages if message.role == "tool"]


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in CLIENTS), ("google_generate", {"forgets": True})],
    ids=[*CLIENTS, "google_generate-forgetful"],
)
def test_a_conversation_is_to_its_client_what_was_sampled_and_one_chain(tmp_path, name, options):
    """Streamed and whole, with any text, calls, results and chunks of the engine."""
    with asyncio.Runner() as runner:
        exits = AsyncExitStack()
        client, setup = runner.run(begin(exits, tmp_path, name, options))

        @given(st.lists(replies(), min_size=1, max_size=3))
        @SETTINGS
        def law(said):
            for stream in (False, True):
                turns, calls = runner.run(converse(client, setup, said, stream=stream))
                for turn, sampled, call in zip(turns, said, calls, strict=True):
                    check_turn(turn, sampled, call, client.finished)
                assert [call.parent_id for call in calls] == [None, *(c.id for c in calls[:-1])]
                assert [call.fork_reason for call in calls] == [None] * len(calls)
                assert results_in(calls[-1]) == results_of(said[:-1])
                report = trajectory.check(calls, trajectory.build(calls))
                assert report.traces == 1
                assert report.kept == report.sampled

        try:
            law()
        finally:
            runner.run(exits.aclose())


BLOCKS = (
    '<tool_call>{"name": "bash", "arguments": {',
    '<tool_call>\n{"arguments": {"a": 1}, "name": "edit"',
    *('"a": "é{\\\\"', '"', ": ", "}", "}}", "]", "\n", "</tool_call>", "</tool", "text "),
)


@dataclass(frozen=True)
class Blocks:
    """Calls that may be whole, cut or broken, and how many bytes each chunk of them has."""

    text: str
    cuts: tuple[int, ...]


blocks = st.builds(
    Blocks,
    st.lists(st.sampled_from(BLOCKS), max_size=8).map("".join),
    st.lists(st.integers(1, 40), max_size=12).map(tuple),
)


def test_of_calls_that_may_be_broken_a_stream_says_what_the_whole_reply_says(tmp_path):
    with asyncio.Runner() as runner:
        exits = AsyncExitStack()
        _, setup = runner.run(begin(exits, tmp_path, "openai_chat", {}))
        body = ask("begin")

        async def replies_to(said: Blocks):
            session = await setup.serving.open()
            await setup.gateway.open(session, SessionPolicy())
            setup.engine.replies = [said, replace(said, cuts=())]
            async with setup.serving.client(session) as client:
                client.base_url = f"{setup.url}/s/{session.key}/v1"
                whole = (await client.chat.completions.create(**body)).choices[0]
                async with client.chat.completions.stream(**body) as stream:
                    streamed = (await stream.get_final_completion()).choices[0]
            await setup.gateway.close(session.id)
            return whole, streamed

        @given(blocks)
        @SETTINGS
        def law(said):
            whole, streamed = runner.run(replies_to(said))
            assert whole.finish_reason == streamed.finish_reason
            assert (whole.message.content or "") == (streamed.message.content or "")
            told = [
                [(call.function.name, call.function.arguments) for call in each.tool_calls or ()]
                for each in (whole.message, streamed.message)
            ]
            assert told[0] == told[1]

        try:
            law()
        finally:
            runner.run(exits.aclose())


async def begin(exits: AsyncExitStack, tmp_path, name, options):
    """Serve until the exits are taken."""
    serves = await exits.enter_async_context(serving(tmp_path))
    engine = CutEngine()
    gateway = Gateway(engine, ByteRenderer(), serves.journal)
    address = await exits.enter_async_context(gateway.serve())
    client = await exits.enter_async_context(client_of(name, address.url, **options))
    return client, Conversing(serves, gateway, engine, address.url)
