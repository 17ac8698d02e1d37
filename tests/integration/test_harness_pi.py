"""The real Pi, in real sandboxes, against a scripted model."""

import shutil

import pytest
from harness_support import CACHE, ScriptedModel, install, session, tool

from polar.harnesses.pi import Pi
from polar.harnesses.settings import PiSettings
from polar.runtimes import load
from polar.types import Chat, Message

pytestmark = pytest.mark.timeout(600)


def agent(**settings) -> Pi:
    return Pi(PiSettings(cache=CACHE, **settings))


@pytest.fixture(scope="module", autouse=True)
def installed():
    assert shutil.which("node"), "Pi needs Node 20.6 or newer on PATH"
    install(agent())


@pytest.fixture(params=["bubblewrap", "local"])
async def runtime(request):
    runtime = load(request.param)()
    yield runtime
    await runtime.aclose()


def two_turns(request, turns):
    done = {"role": "assistant", "content": "Done."}
    return [tool("echo hello > hello.txt"), done][turns]


def kind(request) -> str:
    system = request.body["messages"][0]["content"]
    return agent().kind_of(Chat("m", (Message("system", system),)), request.headers)


async def test_it_does_its_work(runtime, tmp_path):
    async with ScriptedModel(two_turns) as model:
        result = await session(agent(), runtime, tmp_path / "work", model.url)

    assert result.exit_code == 0, result.stderr
    assert result.stdout == "Done.\n"
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["hello.txt"]
    assert (tmp_path / "work" / "hello.txt").read_text() == "hello\n"
    first, second = model.requests
    assert first.path == "/s/the-key/v1/chat/completions"
    assert first.headers["authorization"] == "Bearer the-key"
    assert (first.body["model"], first.body["stream"]) == ("a-model", True)
    assert [offered["function"]["name"] for offered in first.body["tools"]] == ["bash"]
    assert [kind(request) for request in model.requests] == ["main", "main"]
    answered = second.body["messages"][-2]["tool_calls"][0]
    assert answered["id"] == "call_0"


async def test_a_model_that_fails_is_tried_as_often_as_set(tmp_path):
    runtime = load("bubblewrap")()

    async with ScriptedModel(lambda *_: 500) as model:
        result = await session(agent(model_retries=0), runtime, tmp_path / "work", model.url)

    assert len(model.requests) == 1
    assert not agent().ended_well(result)
