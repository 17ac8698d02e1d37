"""What every harness preset promises."""

import pickle
import re
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from polar.config.families import settings_model
from polar.errors import ConfigError
from polar.harnesses import load, names
from polar.harnesses.base import Harness, LaunchRequest
from polar.runtimes.base import ExecResult, Place
from polar.types import Chat, Message, ToolSpec

ODD = """it's "odd" $HOME `id` {braces} {{task}} \\ ä
--flag @file"""
TOOL = ToolSpec("run", "Runs a command.", {"type": "object"})
CHAT = Chat("m", (Message("system", "s"), Message("user", "u")), tools=(TOOL,))
REQUEST = LaunchRequest(ODD, "a-model", "the-key", Place("/work", "/home/x", "http://h:9"))


HEADERS = {
    "claude_agent_sdk": {"x-claude-code-session-id": "any"},
    "claude_code": {"x-claude-code-session-id": "any"},
    "codex": {"session-id": "any"},
    "gemini_cli": {"user-agent": "GeminiCLI/1 (linux)"},
    "opencode": {"x-session-affinity": "any"},
}
"""Preset -> what its own requests carry; the others' clients are the official OpenAI SDK."""
MENDS_CALLS = ("pi", "qwen_code")
"""Presets whose program completes arguments that were cut, and runs the call."""
ENDS_WITH_ITS_COMMANDS = ("aider",)
"""Presets whose program runs the commands of one reply, and ends."""


@pytest.fixture(params=names())
def harness(request, tmp_path) -> Harness:
    program = tmp_path / "program" / "bin" / "program"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (program.parent.parent / "package.json").write_text('{"version": "1"}')
    model = settings_model("harness", request.param)
    given = {"executable": program, "node": program, "cache": tmp_path}
    given["command"] = "agent {instruction} {base_url} {key} {model}"
    settings = model(**{name: given[name] for name in given if name in model.model_fields})
    return load(request.param)(settings)


def told(launch) -> str:
    process = launch.process
    return "\n".join(
        [*process.argv, *process.env.values(), process.stdin or "", *launch.files.values()]
    )


def test_what_tells_calls_apart_can_be_sent_to_another_process(harness):
    sent = pickle.loads(pickle.dumps(harness.kind_of))
    headers = HEADERS.get(harness.name, {"user-agent": "OpenAI/Python 1"})
    assert sent(CHAT, headers) == harness.kind_of(CHAT, headers)


def test_a_preset_is_found_under_its_own_name(harness):
    assert load(harness.name) is type(harness)
    assert harness.name in names()


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="mini_swe_agent"):
        load("mini-swe-agent")


def test_what_is_found_is_there(harness):
    found = harness.find()

    assert found.executable.exists()
    assert all(folder.is_dir() for folder in found.read_only)


def test_programs_that_mend_a_call_which_was_cut_are_given_whole_ones(harness):
    assert harness.whole_calls is (harness.name in MENDS_CALLS)


def test_a_launch_is_the_same_every_time(harness):
    assert harness.launch(REQUEST) == harness.launch(REQUEST)


def test_a_launch_tells_address_key_model_and_task(harness):
    text = told(harness.launch(REQUEST))

    assert "http://h:9/s/the-key" in text
    assert "the-key" in text
    assert "a-model" in text


def test_an_odd_instruction_arrives_unchanged(harness):
    launch = harness.launch(REQUEST)
    process = launch.process

    arrived = [process.stdin, *process.argv, *process.env.values()]
    assert any(ODD in text for text in arrived if text)


def test_config_files_lie_in_the_home(harness):
    for name in harness.launch(REQUEST).files:
        path = PurePosixPath(name)
        assert not path.is_absolute()
        assert ".." not in path.parts


def test_nothing_but_the_session_differs_between_sessions(harness):
    other = replace(REQUEST, key="another")

    first, second = told(harness.launch(REQUEST)), told(harness.launch(other))

    assert first.replace("the-key", "another") == second


def test_install_commands_are_whole_command_lines(harness):
    for command in harness.install_command():
        assert all(isinstance(word, str) and word for word in command)


def test_what_is_installed_has_a_pinned_version(harness):
    packages = [
        word
        for command in harness.install_command()
        if "install" in command
        for word in command[command.index("install") + 1 :]
        if not word.startswith(("-", "/"))
    ]
    assert bool(packages) == bool(harness.install_command())
    for package in packages:
        assert re.search(r"(@|==)\d+\.\d+", package), package


def test_an_agent_that_simply_ended_ended_well(harness):
    assert harness.ended_well(ExecResult(0, "", "", timed_out=False, wall_s=1.0))


def test_a_program_that_was_not_there_did_not_end_well(harness):
    assert not harness.ended_well(ExecResult(127, "", "", timed_out=False, wall_s=1.0))


def test_the_harnesss_own_first_call_is_a_main_one(harness):
    headers = HEADERS.get(harness.name, {"x-stainless-lang": "any"})

    assert harness.kind_of(CHAT, headers) == "main"


def test_a_request_without_the_harnesss_own_headers_is_foreign(harness):
    expected = "main" if harness.name == "shell" else "foreign"

    assert harness.kind_of(CHAT, {"user-agent": "curl/8"}) == expected


def test_an_experts_turns_run_the_commands_in_order_and_end(harness):
    turns = harness.expert_turns(("echo first", "echo second"))

    if harness.name == "shell":
        assert turns == ()
        return
    assert all(turn.role == "assistant" for turn in turns)
    written = [f"{turn.content}{turn.tool_calls}" for turn in turns]
    first, second = (_index(written, command) for command in ("echo first", "echo second"))
    if harness.name in ENDS_WITH_ITS_COMMANDS:
        assert (first, second, len(turns)) == (0, 0, 1)
        assert written[0].index("echo first") < written[0].index("echo second")
        return
    assert (first, second, len(turns)) == (0, 1, 3)
    assert not turns[-1].tool_calls or "SUBMIT" in written[-1]


def _index(written: list[str], command: str) -> int:
    (index,) = (index for index, text in enumerate(written) if command in text)
    return index
