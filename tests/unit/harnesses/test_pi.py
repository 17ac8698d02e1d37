"""How Pi is found, told and read."""

import json
from pathlib import Path

import pytest

from polar.errors import HarnessMissing
from polar.harnesses.base import LaunchRequest
from polar.harnesses.pi import VERSION, Pi
from polar.harnesses.settings import PiSettings
from polar.runtimes.base import Place
from polar.types import Chat, Message

REQUEST = LaunchRequest(
    "-begins with a dash", "a-model", "the-key", Place("/work", "/home/x", "http://127.0.0.1:9")
)
OWN = {"X-Stainless-Lang": "js"}


def install(folder: Path) -> Path:
    """Lay out what `npm` leaves, as far as Polar looks at it."""
    package = folder / "node_modules" / "@mariozechner" / "pi-coding-agent"
    (package / "dist").mkdir(parents=True)
    (package / "package.json").write_text('{"version": "9.9"}')
    (package / "dist" / "cli.js").write_text("")
    link = folder / "node_modules" / ".bin" / "pi"
    link.parent.mkdir()
    link.symlink_to("../@mariozechner/pi-coding-agent/dist/cli.js")
    return link


@pytest.fixture
def node(tmp_path):
    node = tmp_path / "node-20" / "bin" / "node"
    node.parent.mkdir(parents=True)
    node.write_text("")
    node.chmod(0o755)
    return node


@pytest.fixture
def harness(tmp_path, node):
    def make(**settings) -> Pi:
        install(tmp_path / "cache" / "harnesses" / f"pi-{VERSION}-node-22.23.3")
        return Pi(PiSettings(cache=tmp_path / "cache", node=node, **settings))

    return make


def chat(system: str) -> Chat:
    return Chat("m", (Message("system", system), Message("user", "hi")))


def test_the_sandbox_is_shown_the_packages_and_node(harness, tmp_path, node):
    found = harness().find()

    assert found.version == "9.9"
    assert found.executable.name == "cli.js"
    assert found.read_only == (
        tmp_path / "cache" / "harnesses" / f"pi-{VERSION}-node-22.23.3",
        node.parent.parent,
    )


def test_without_node_the_error_says_so(tmp_path, monkeypatch):
    install(tmp_path / "harnesses" / f"pi-{VERSION}-node-22.23.3")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(HarnessMissing, match="Node"):
        Pi(PiSettings(cache=tmp_path)).find()


def test_when_it_is_nowhere_the_error_says_what_to_do(tmp_path, monkeypatch, node):
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(HarnessMissing, match="polar install pi"):
        Pi(PiSettings(cache=tmp_path, node=node)).find()


def test_a_wrong_path_is_missing(tmp_path, node):
    with pytest.raises(HarnessMissing, match="executable"):
        Pi(PiSettings(executable=tmp_path / "pi", node=node)).find()


def test_the_installation_is_pinned_and_lands_in_the_cache(tmp_path):
    command, _ = Pi(PiSettings(cache=tmp_path)).install_command()

    assert command[-2] == f"@mariozechner/pi-coding-agent@{VERSION}"
    assert command[-1].startswith("node-linux-")
    assert str(tmp_path) in command[3]


def test_it_is_told_the_sessions_own_address_key_and_model(harness):
    launch = harness(tools=("bash", "read")).launch(REQUEST)

    provider = json.loads(launch.files[".pi/agent/models.json"])["providers"]["polar"]
    assert provider["baseUrl"] == "http://127.0.0.1:9/s/the-key/v1"
    assert provider["apiKey"] == "the-key"
    assert provider["models"][0]["id"] == "a-model"
    assert launch.process.env["PI_CODING_AGENT_DIR"] == "/home/x/.pi/agent"
    assert "bash,read" in launch.process.argv


def test_an_instruction_that_looks_like_a_flag_is_no_argument(harness):
    process = harness().launch(REQUEST).process

    assert process.stdin == "-begins with a dash"
    assert process.stdin not in process.argv


def test_its_own_system_prompt_can_stay(harness):
    assert "--system-prompt" not in harness(system_prompt=None).launch(REQUEST).process.argv


@pytest.mark.parametrize(
    ("system", "headers", "kind"),
    [
        ("You work in a shell.", OWN, "main"),
        ("You are a context summarization assistant. Read", OWN, "compaction"),
        ("You work in a shell.", {"user-agent": "curl/8"}, "foreign"),
    ],
)
def test_calls_are_told_apart(harness, system, headers, kind):
    assert harness().kind_of(chat(system), headers) == kind
