"""Programs that are built on an SDK: how the SDK is found, and what a program is told."""

import json
from pathlib import Path

import pytest

from polar.errors import ConfigError, HarnessMissing
from polar.harnesses import load
from polar.harnesses.base import LaunchRequest
from polar.harnesses.claude_agent_sdk import ClaudeAgentSdk
from polar.harnesses.openai_agents import VERSION, OpenAiAgents
from polar.harnesses.settings import ClaudeAgentSdkSettings, OpenAiAgentsSettings
from polar.runtimes.base import Place

REQUEST = LaunchRequest("Work.", "a-model", "the-key", Place("/work", "/home/x", "http://h:9"))


def environment(folder: Path, package: str = "openai_agents", version: str = VERSION) -> Path:
    """Lay out what `pip` leaves, as far as Polar looks at it."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    if package:
        (folder / f"lib/python3.11/site-packages/{package}-{version}.dist-info").mkdir(parents=True)
    return python


def own(tmp_path) -> Path:
    return tmp_path / "harnesses" / f"openai_agents-{VERSION}"


def test_a_librarys_interpreter_is_found_with_the_librarys_version(tmp_path):
    python = environment(own(tmp_path))

    found = OpenAiAgents(OpenAiAgentsSettings(cache=tmp_path)).find()

    assert (found.executable, found.version) == (python, VERSION)
    assert own(tmp_path) in found.read_only


def test_an_interpreter_without_the_library_is_no_installation(tmp_path):
    environment(own(tmp_path), package="")

    with pytest.raises(HarnessMissing, match="polar install openai_agents"):
        OpenAiAgents(OpenAiAgentsSettings(cache=tmp_path)).find()


@pytest.mark.parametrize("name", ["openai_agents", "claude_agent_sdk"])
def test_the_example_comes_with_the_package_and_is_shown(name, tmp_path):
    cls = load(name)
    settings = {"openai_agents": OpenAiAgentsSettings, "claude_agent_sdk": ClaudeAgentSdkSettings}
    harness = cls(settings[name](executable=environment(tmp_path / "venv")))

    _, script, *_ = harness.launch(REQUEST).process.argv

    assert Path(script).is_file()
    assert Path(script).parent in harness.find().read_only


def test_a_program_that_is_not_there_is_an_error_before_any_session(tmp_path):
    settings = OpenAiAgentsSettings(
        executable=environment(tmp_path / "venv"), script=tmp_path / "no.py"
    )

    with pytest.raises(ConfigError, match="program is not there"):
        OpenAiAgents(settings).find()


def test_a_program_of_the_users_own_has_no_known_expert(tmp_path):
    for harness in (
        OpenAiAgents(OpenAiAgentsSettings(script=tmp_path / "own.py")),
        ClaudeAgentSdk(ClaudeAgentSdkSettings(script=tmp_path / "own.py")),
    ):
        assert harness.expert_turns(("true",)) == ()


def test_a_program_is_told_of_model_and_limits_in_a_file_and_of_the_key_in_variables(tmp_path):
    settings = OpenAiAgentsSettings(executable=environment(tmp_path / "venv"), max_turns=7)

    launch = OpenAiAgents(settings).launch(REQUEST)

    *_, path = launch.process.argv
    ((name, text),) = launch.files.items()
    assert path == f"/home/x/{name}"
    told = json.loads(text)
    assert (told["model"], told["max_turns"], told["asks"]) == ("a-model", 7, False)
    assert "the-key" not in text
    assert launch.process.env["OPENAI_AGENTS_DISABLE_TRACING"] == "1"
    assert launch.process.env["POLAR_INSTRUCTION"] == "Work."
