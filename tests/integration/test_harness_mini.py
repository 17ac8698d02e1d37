"""The real mini-swe-agent, in real sandboxes, against a scripted model."""

import asyncio

import pytest
import pytest_asyncio
from harness_support import CACHE, ScriptedModel, install, session, text, tool

from polar.harnesses.mini_swe_agent import MiniSweAgent
from polar.harnesses.settings import MiniSweAgentSettings
from polar.runtimes import load
from polar.types import Chat

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def agent(**settings) -> MiniSweAgent:
    return MiniSweAgent(MiniSweAgentSettings(cache=CACHE, **settings))


@pytest.fixture(scope="module", autouse=True)
def installed():
    install(agent())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtimes():
    """Runtimes that keep their warm parents from test to test."""
    runtimes = {name: load(name)() for name in ("bubblewrap", "local")}
    yield runtimes
    for runtime in runtimes.values():
        await runtime.aclose()


@pytest.fixture(params=["bubblewrap", "local"])
def runtime(request, runtimes):
    return runtimes[request.param]


@pytest.fixture
def bubblewrap(runtimes):
    return runtimes["bubblewrap"]


def two_turns(request, turns):
    return text(["echo hello > hello.txt", DONE][turns])


async def test_it_does_its_work_forked_from_a_warm_parent(runtime, tmp_path, caplog):
    async with ScriptedModel(two_turns) as model:
        result = await session(agent(), runtime, tmp_path / "work", model.url)

    assert result.exit_code == 0, result.stderr
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["hello.txt"]
    assert (tmp_path / "work" / "hello.txt").read_text() == "hello\n"
    assert caplog.text == ""
    first, second = model.requests
    assert first.path == "/s/the-key/v1/chat/completions"
    assert first.headers["authorization"] == "Bearer the-key"
    assert first.body["model"] == "a-model"
    assert first.body["messages"][1]["content"] == "Write hello into hello.txt."
    assert second.body["messages"][3]["content"] == "<returncode>0</returncode>\n"


async def test_it_does_the_same_work_started_anew(bubblewrap, tmp_path):
    async with ScriptedModel(two_turns) as model:
        plain = await session(agent(), bubblewrap, tmp_path / "a", model.url, preload=False)
        forked = await session(agent(), bubblewrap, tmp_path / "b", model.url)

    bodies = [request.body for request in model.requests]
    assert bodies[:2] == bodies[2:]
    assert plain.exit_code == forked.exit_code == 0
    assert plain.stdout == forked.stdout


async def test_sessions_of_one_warm_parent_keep_to_their_own_keys(bubblewrap, tmp_path):
    keys = [f"key-{number}" for number in range(4)]

    async with ScriptedModel(two_turns) as model, asyncio.TaskGroup() as group:
        for key in keys:
            group.create_task(session(agent(), bubblewrap, tmp_path / key, model.url, key=key))

    for key in keys:
        own = [request for request in model.requests if f"/s/{key}/" in request.path]
        assert [request.headers["authorization"] for request in own] == [f"Bearer {key}"] * 2


async def test_its_own_calls_are_main_and_those_of_its_commands_are_foreign(bubblewrap, tmp_path):
    call = (
        "curl -s -d '{\"messages\": []}' -H 'content-type: application/json' "
        "$OPENAI_API_BASE/chat/completions"
    )

    def script(request, turns):
        return text([call, DONE][min(turns, 1)])

    async with ScriptedModel(script) as model:
        await session(agent(), bubblewrap, tmp_path / "work", model.url)

    kinds = [agent().kind_of(Chat("m", ()), request.headers) for request in model.requests]
    assert kinds == ["main", "foreign", "main"]


async def test_it_stops_at_its_limit_of_steps(bubblewrap, tmp_path):
    async with ScriptedModel(lambda *_: text("true")) as model:
        result = await session(agent(step_limit=3), bubblewrap, tmp_path / "work", model.url)

    assert len(model.requests) == 3
    assert agent().ended_well(result)


async def test_it_gives_up_on_a_model_that_writes_no_block(bubblewrap, tmp_path):
    prose = {"role": "assistant", "content": "I would rather talk."}

    async with ScriptedModel(lambda *_: prose) as model:
        result = await session(agent(format_errors=2), bubblewrap, tmp_path / "work", model.url)

    assert len(model.requests) == 2
    assert "exactly one ```bash block" in model.requests[1].body["messages"][-1]["content"]
    assert agent().ended_well(result)


async def test_a_model_that_fails_is_tried_as_often_as_set(bubblewrap, tmp_path):
    async with ScriptedModel(lambda *_: 500) as model:
        result = await session(agent(model_attempts=1), bubblewrap, tmp_path / "work", model.url)

    assert len(model.requests) == 1
    assert not agent().ended_well(result)


async def test_long_output_is_cut(bubblewrap, tmp_path):
    def script(request, turns):
        return text(["seq 10000", DONE][turns])

    async with ScriptedModel(script) as model:
        await session(agent(), bubblewrap, tmp_path / "work", model.url)

    seen = model.requests[1].body["messages"][-1]["content"]
    assert len(seen) < 1100
    assert "[cut: 48894 characters]" in seen


@pytest.mark.parametrize(
    ("settings", "reply"),
    [
        ({"actions": "tools"}, tool),
        ({"actions": "tools", "prompt": "default"}, tool),
        (
            {"prompt": "default"},
            lambda command, _: {
                "role": "assistant",
                "content": f"```mswea_bash_command\n{command}\n```",
            },
        ),
    ],
    ids=["tools-short", "tools-default", "text-default"],
)
async def test_every_way_to_prompt_it_works(bubblewrap, tmp_path, settings, reply):
    def script(request, turns):
        return reply(["echo hello > hello.txt", DONE][turns], turns)

    async with ScriptedModel(script) as model:
        result = await session(agent(**settings), bubblewrap, tmp_path / "work", model.url)

    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "work" / "hello.txt").read_text() == "hello\n"
    assert ("tools" in model.requests[0].body) is (settings.get("actions") == "tools")
