"""Ways in which tokens get lost, mixed up or miscounted between an engine and the record."""

import asyncio
import gc
import json
import math
import weakref

import pytest
from gateway_support import END, ByteEngine, ByteRenderer, Hold, ask, serving
from test_proxy_traps import FORMATS, Format, post

from polar.engines.base import Capabilities, Chunk
from polar.errors import EngineRefused
from polar.gateway import Gateway, SessionPolicy
from polar.gateway.session import OpenSession

THINKS = "<think>why not</think>"
CALLS = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


@pytest.fixture(params=FORMATS)
def form(request) -> Format:
    return FORMATS[request.param]


async def streamed(http, session, form) -> list[dict]:
    """Stream a reply and return its events."""
    body = form.body("hi", True)
    if form is FORMATS["openai_chat"]:
        body["stream_options"] = {"include_usage": True}
    answer = await post(http, session, form, body, stream=True)
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def told_usage(form, events) -> tuple[int, int]:
    """Find the usage at the end of a stream, wherever the format has it."""
    for event in reversed(events):
        for place in (event, event.get("response") or {}):
            if place.get("usage") or place.get("usageMetadata"):
                return form.usage(place)
    raise AssertionError("no event tells the usage")


@pytest.mark.parametrize(
    "script",
    [THINKS + "It is." + CALLS, THINKS + CALLS + CALLS, CALLS, THINKS, "ä", CALLS[:-20]],
    ids=["everything", "parallel", "call", "reasoning", "text", "cut"],
)
async def test_what_a_stream_holds_back_or_parses_away_is_on_record_and_counted(
    tmp_path, form, script
):
    async with serving(tmp_path, script) as setup, setup.http() as http:
        session = await setup.open()
        events = await streamed(http, session, form)
        (call,) = await setup.journal.calls(session.id)
    assert call.sampled_ids.tolist() == [*script.encode(), END]
    assert len(call.logprobs) == len(call.weight_versions) == len(call.sampled_ids)
    assert told_usage(form, events) == (len(call.prompt_ids), len(call.sampled_ids))


class _Telling(ByteEngine):
    def __init__(self, **told) -> None:
        super().__init__()
        self.told = {"token_ids": True, "logprobs": True, **told}

    async def probe(self):
        return Capabilities("m", 1000, weight_updates=False, **self.told)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"token_ids": False}, "no token ids"),
        ({"logprobs": False}, "no logprobs"),
        ({"token_ids": False, "logprobs": False}, "no token ids and no logprobs"),
    ],
)
async def test_an_engine_without_ids_or_logprobs_is_refused_before_the_first_call(
    tmp_path, told, said
):
    async with serving(tmp_path) as setup:
        gateway = Gateway(_Telling(**told), ByteRenderer(), setup.journal)
        with pytest.raises(EngineRefused, match=said):
            async with gateway.serve():
                pass


class _Losing(ByteEngine):
    """Tells a token whose logprob, or whose id, it has lost."""

    def __init__(self, lost: str) -> None:
        super().__init__()
        self.lost = lost

    async def sample(self, request):
        yield Chunk((65,), (-1.0,), 7)
        match self.lost:
            case "logprob":
                yield Chunk((66, 67), (-1.0,), 7)
            case "id":
                yield Chunk((66,), (-1.0, -2.0), 7)
            case "number":
                yield Chunk((66,), (math.nan,), 7)
        yield Chunk((END,), (-1.0,), 7, "stop")


class _Inventing(ByteEngine):
    """Tells an id that no tokenizer has."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token

    async def sample(self, request):
        yield Chunk((65,), (-1.0,), 7)
        yield Chunk((self.token,), (-1.0,), 7)
        yield Chunk((END,), (-1.0,), 7, "stop")


@pytest.mark.parametrize("token", [-1, 2**31, 2**64])
async def test_what_is_no_id_of_a_token_fails_its_call_and_not_the_run(tmp_path, form, token):
    async with serving(tmp_path) as setup, setup.http() as http:
        session = await setup.open()
        gateway = Gateway(_Inventing(token), ByteRenderer(), setup.journal)
        async with gateway.serve() as address:
            await gateway.open(session, SessionPolicy())
            url = f"{address.url}/s/{session.key}{form.path(False)}"
            answer = await http.post(url, json=form.body("hi", False))
        (call,) = await setup.journal.calls(session.id)
    assert answer.status_code == 503
    assert gateway.failure is None
    assert (call.finish_reason, call.sampled_ids.tolist()) == ("error", [65])


@pytest.mark.parametrize("lost", ["logprob", "id", "number"])
async def test_a_token_without_its_logprob_fails_its_call_at_once(tmp_path, form, lost):
    async with serving(tmp_path) as setup, setup.http() as http:
        session = await setup.open()
        gateway = Gateway(_Losing(lost), ByteRenderer(), setup.journal)
        async with gateway.serve() as address:
            await gateway.open(session, SessionPolicy())
            url = f"{address.url}/s/{session.key}{form.path(False)}"
            answer = await http.post(url, json=form.body("hi", False))
        (call,) = await setup.journal.calls(session.id)
    assert answer.status_code == 503
    assert "logprob" in answer.text
    assert (call.finish_reason, call.sampled_ids.tolist()) == ("error", [65])
    assert len(call.logprobs) == 1


async def test_equal_requests_of_two_sessions_are_two_calls(tmp_path, form):
    first, second = Hold(), Hold()
    async with serving(tmp_path, [first, "1"], [second, "2"]) as setup, setup.http() as http:
        one, other = await setup.open(), await setup.open()
        body = form.body("the same", False)
        asked = asyncio.create_task(post(http, one, form, body))
        await first.reached.wait()
        also = asyncio.create_task(post(http, other, form, body))
        await second.reached.wait()
        first.released.set()
        second.released.set()
        assert '"1"' in (await asked).text.replace('": "', '":"')
        assert '"2"' in (await also).text.replace('": "', '":"')
        for session in (one, other):
            (call,) = await setup.journal.calls(session.id)
            assert (call.session_id, call.parent_id) == (session.id, None)


async def test_no_more_calls_are_made_at_once_than_a_session_may_make(tmp_path, form):
    hold = Hold()
    async with serving(tmp_path, *[[hold, "x"]] * 3) as setup, setup.http() as http:
        session = await setup.open(SessionPolicy(max_calls=3))
        asked = [
            asyncio.create_task(post(http, session, form, form.body(f"ask {n}", False)))
            for n in range(10)
        ]
        while sum(task.done() for task in asked) < 7:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=0.01)
        hold.released.set()
        answers = await asyncio.gather(*asked)
        assert sorted(answer.status_code for answer in answers) == [200] * 3 + [400] * 7
        assert len(await setup.journal.calls(session.id)) == 3


async def test_a_closed_session_leaves_nothing_in_memory(tmp_path, form):
    async with serving(tmp_path, "yes", "no") as setup, setup.http() as http:
        await post(http, await setup.open(), form, form.body("warm up", False))
        session = await setup.open()
        await post(http, session, form, form.body("hi", False))
        gc.collect()
        (opened,) = (
            weakref.ref(found)
            for found in gc.get_objects()
            if type(found) is OpenSession and found.session is session
        )
        await setup.gateway.close(session.id)
        await http.get("/v1/models")
        gc.collect()
        assert opened() is None


async def test_the_record_keeps_which_weights_sampled_each_token_of_every_trace(tmp_path):
    hold = Hold()
    async with serving(tmp_path, ["old", hold, "new"]) as setup:
        session = await setup.open()
        async with setup.client(session) as client:
            asked = asyncio.create_task(client.chat.completions.create(**ask("hi")))
            await hold.reached.wait()
            await setup.engine.load_weights(8, None)
            hold.released.set()
            await asked
        (call,) = await setup.journal.calls(session.id)
    assert call.weight_versions.tolist() == [7, 7, 7, 8, 8, 8, 8]
