"""How Aider is told: who answers its questions, where its files lie, which commands it runs."""

import json
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.harnesses.aider import Aider
from polar.harnesses.base import LaunchRequest
from polar.harnesses.settings import AiderSettings
from polar.runtimes.base import Place
from polar.types import Chat, Message

REQUEST = LaunchRequest("Work.", "a-model", "the-key", Place("/work", "/home/x", "http://h:9"))


@pytest.fixture
def aider(tmp_path):
    program = tmp_path / "venv" / "bin" / "aider"
    program.parent.mkdir(parents=True)
    (program.parent / "python").write_text("")
    program.write_text(f"#!{program.parent}/python\n")
    return lambda **settings: Aider(AiderSettings(executable=program, **settings))


def words(harness, **changes) -> tuple[str, ...]:
    return harness.launch(replace(REQUEST, **changes)).process.argv


def test_in_a_sandbox_every_question_has_its_default_answer(aider):
    process = aider().launch(REQUEST).process

    assert "--yes-always" not in process.argv
    assert process.stdin == ""


def test_without_a_sandbox_it_edits_and_runs_nothing(aider):
    assert "--yes-always" in words(aider(), asks=True)


def test_at_its_own_screen_it_asks(aider):
    process = aider().launch(replace(REQUEST, interactive=True, asks=True)).process

    assert "--yes-always" not in process.argv
    assert process.stdin is None


@pytest.mark.parametrize("task", ["/run rm -rf .", "!rm -rf ."])
def test_a_task_is_never_one_of_its_own_commands(aider, task):
    assert f"--message= {task}" in words(aider(), instruction=task)


def test_where_it_has_to_ask_it_makes_no_repository(aider):
    assert words(aider(git=True), asks=True)[0] == "/bin/sh"
    assert words(aider(git=True))[0].endswith("/aider")
    assert "--git" in words(aider(commits=True), asks=True)
    assert "--no-git" in words(aider())


def test_address_and_key_stand_where_no_file_of_the_work_folder_changes_them(aider):
    files = aider(max_tokens=9).launch(REQUEST).files

    (model,) = json.loads(files[".config/polar/aider/models.json"])
    assert model["extra_params"] == {
        "api_base": "http://h:9/s/the-key/v1",
        "api_key": "the-key",
        "max_tokens": 9,
    }
    assert model["weak_model_name"] == model["name"] == "openai/a-model"


def test_what_differs_between_sessions_is_not_in_the_preload(aider):
    harness = aider()

    first, second = (
        harness.launch(replace(REQUEST, key=key)).process.preload for key in ("a", "b")
    )

    assert first == second
    assert first is not None
    assert harness.launch(replace(REQUEST, asks=True)).process.preload is None


@pytest.mark.parametrize("settings", [{"edit_format": "whole"}, {"commands": False}])
def test_where_it_runs_no_commands_no_expert_is_known(aider, settings):
    assert aider(**settings).expert_turns(("true",)) == ()


@given(st.text(st.characters(codec="ascii", exclude_characters="\0\r"), min_size=1))
def test_a_command_of_several_lines_becomes_a_line_that_does_the_same(text):
    quoted = text.replace("'", "'\\''")
    command = f"printf '%s\\n' '{quoted}'\nprintf x"

    (turn,) = Aider(AiderSettings()).expert_turns((command,))

    begin, line, end = turn.content.split("\n")
    assert (begin, end) == ("```bash", "```")
    ran = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{text}\nx"


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        (
            "You are an expert software engineer that generates concise, one-line Git commit",
            "auxiliary",
        ),
        ("*Briefly* summarize this partial conversation about programming.", "compaction"),
        ("Act as an expert software developer.", "main"),
    ],
)
def test_the_system_prompt_tells_the_kind(prompt, kind):
    quoting = Message("user", "Explain: *Briefly* summarize this partial conversation")
    chat = Chat("m", (Message("system", prompt), quoting))

    assert Aider(AiderSettings()).kind_of(chat, {"x-stainless-lang": "python"}) == kind
