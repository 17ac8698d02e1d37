"""How mini-swe-agent is found, told and read."""

import sys
from pathlib import Path

import pytest
import yaml

from polar.errors import HarnessMissing
from polar.harnesses.base import LaunchRequest
from polar.harnesses.mini_swe_agent import VERSION, MiniSweAgent
from polar.harnesses.settings import MiniSweAgentSettings
from polar.runtimes.base import ExecResult, Place

REQUEST = LaunchRequest(
    "make it so", "a-model", "the-key", Place("/work", "/home/x", "http://127.0.0.1:9")
)


def install(folder: Path, python: str = sys.executable) -> Path:
    """Lay out what `pip` leaves, as far as Polar looks at it."""
    script = folder / "bin" / "mini"
    script.parent.mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(python)
    script.write_text(f"#!{folder}/bin/python\nfrom minisweagent.run.mini import app\n")
    (folder / "lib/python3.11/site-packages/mini_swe_agent-9.9.dist-info").mkdir(parents=True)
    return script


@pytest.fixture
def harness(tmp_path):
    def make(**settings) -> MiniSweAgent:
        return MiniSweAgent(MiniSweAgentSettings(executable=install(tmp_path / "venv"), **settings))

    return make


def config_of(harness: MiniSweAgent) -> dict:
    (text,) = harness.launch(REQUEST).files.values()
    return yaml.safe_load(text)


def test_it_is_found_where_the_settings_say(harness, tmp_path):
    found = harness().find()

    assert found.executable == tmp_path / "venv" / "bin" / "mini"
    assert found.version == "9.9"
    assert tmp_path / "venv" in found.read_only


def test_a_wrong_path_is_missing_and_not_looked_for_elsewhere(tmp_path):
    harness = MiniSweAgent(MiniSweAgentSettings(executable=tmp_path / "mini"))

    with pytest.raises(HarnessMissing, match="executable"):
        harness.find()


def test_polars_own_installation_goes_before_the_path(tmp_path, monkeypatch):
    on_path = install(tmp_path / "elsewhere")
    on_path.chmod(0o755)
    monkeypatch.setenv("PATH", str(on_path.parent))
    settings = MiniSweAgentSettings(cache=tmp_path / "cache")

    assert MiniSweAgent(settings).find().executable == on_path

    own = install(tmp_path / "cache" / "harnesses" / f"mini_swe_agent-{VERSION}")

    assert MiniSweAgent(settings).find().executable == own


def test_when_it_is_nowhere_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(HarnessMissing, match="polar install mini_swe_agent"):
        MiniSweAgent(MiniSweAgentSettings(cache=tmp_path)).find()


def test_the_installation_is_pinned_and_lands_in_the_cache(tmp_path):
    make, install_it = MiniSweAgent(MiniSweAgentSettings(cache=tmp_path)).install_command()

    assert make[-1].startswith(str(tmp_path))
    assert install_it[-1] == f"mini-swe-agent=={VERSION}"
    assert install_it[0].startswith(make[-1])


def test_it_is_told_the_sessions_own_address_key_and_model(harness):
    process = harness().launch(REQUEST).process

    assert process.env["OPENAI_API_BASE"] == "http://127.0.0.1:9/s/the-key/v1"
    assert process.env["OPENAI_API_KEY"] == "the-key"
    assert "--model=openai/a-model" in process.argv
    assert "--task=make it so" in process.argv


def test_it_writes_nothing_of_its_own_into_the_work_folder(harness):
    launch = harness().launch(REQUEST)

    assert any(argument.startswith("--output=/home/x/") for argument in launch.process.argv)
    assert all(f"/home/x/{name}" in " ".join(launch.process.argv) for name in launch.files)


def test_what_differs_between_sessions_is_not_in_the_preload(harness):
    made = harness()
    other = LaunchRequest("other", "m", "other-key", REQUEST.place)

    first, second = (made.launch(request).process.preload for request in (REQUEST, other))

    assert first == second
    assert hash(first) == hash(second)
    assert first.env.items() <= made.launch(REQUEST).process.env.items()


def test_without_an_interpreter_line_it_is_not_preloaded(tmp_path):
    script = install(tmp_path / "venv")
    script.write_text("no interpreter")
    harness = MiniSweAgent(MiniSweAgentSettings(executable=script))

    assert harness.launch(REQUEST).process.preload is None


def test_the_short_prompt_is_short(harness):
    config = config_of(harness())

    prompt = config["agent"]["system_template"]
    assert len(prompt.split()) < 60
    assert len(prompt) < 400
    assert prompt.count("```bash\n") == 2
    assert "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in prompt
    assert config["agent"]["instance_template"] == "{{task}}"


def test_the_default_prompt_is_the_harnesss_own(harness):
    made = harness(prompt="default", actions="tools", step_limit=9)

    config = config_of(made)
    specs = [a for a in made.launch(REQUEST).process.argv if a.startswith("--config=")]
    assert specs[0] == "--config=mini.yaml"
    assert "system_template" not in config["agent"]
    assert "action_regex" not in config["model"]
    assert config["agent"]["step_limit"] == 9


def test_text_actions_have_their_own_default_prompt(harness):
    made = harness(prompt="default")

    assert "--config=mini_textbased.yaml" in made.launch(REQUEST).process.argv
    assert config_of(made)["model"]["model_class"] == "litellm_textbased"


@pytest.mark.parametrize(
    ("prompt", "block"), [("short", "bash"), ("default", "mswea_bash_command")]
)
def test_an_expert_writes_the_block_that_the_prompt_asks_for(harness, prompt, block):
    first, *_ = harness(prompt=prompt).expert_turns(["true"])

    assert first.content == f"```{block}\ntrue\n```"


@pytest.mark.parametrize(("code", "well"), [(0, True), (1, False), (2, False), (137, True)])
def test_only_the_programs_own_failure_is_an_end_that_is_not_well(harness, code, well):
    result = ExecResult(code, "", "", timed_out=False, wall_s=1.0)

    assert harness().ended_well(result) is well
