"""Any command line as a harness."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.errors import ConfigError
from polar.harnesses.base import LaunchRequest
from polar.harnesses.settings import ShellSettings
from polar.harnesses.shell import Shell
from polar.runtimes.base import ExecResult, Place

PLACE = Place("/work", "/home/x", "http://127.0.0.1:9")


def line(command: str, instruction: str = "do it") -> str:
    request = LaunchRequest(instruction, "a-model", "the-key", PLACE)
    return Shell(ShellSettings(command=command)).launch(request).process.argv[-1]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_instruction_is_one_word_of_the_command(instruction):
    assert shlex.split(line("agent --task {instruction} -v", instruction)) == [
        "agent",
        "--task",
        instruction,
        "-v",
    ]


def test_all_fields_are_filled_in():
    filled = line("a {base_url} {key} {model} {{kept}}")

    assert filled == "a http://127.0.0.1:9/s/the-key/v1 the-key a-model {kept}"


def test_the_address_is_in_the_environment_under_the_usual_names():
    settings = ShellSettings(command="agent", env={"MORE": "yes"})

    env = Shell(settings).launch(LaunchRequest("do it", "m", "k", PLACE)).process.env

    assert env["OPENAI_BASE_URL"] == env["OPENAI_API_BASE"] == "http://127.0.0.1:9/s/k/v1"
    assert (env["OPENAI_API_KEY"], env["OPENAI_MODEL"], env["MORE"]) == ("k", "m", "yes")
    assert env["POLAR_INSTRUCTION"] == "do it"


@pytest.mark.parametrize("command", ["a {task}", "a {}", "a {0}"])
def test_a_field_that_does_not_exist_is_refused_at_once(command):
    with pytest.raises(ConfigError, match="unknown fields"):
        Shell(ShellSettings(command=command))


@pytest.mark.parametrize("command", ["a {", "a }", "a {key"])
def test_a_brace_that_is_alone_is_refused_at_once(command):
    with pytest.raises(ConfigError, match="braces"):
        Shell(ShellSettings(command=command))


@pytest.mark.parametrize(("code", "well"), [(0, True), (1, True), (126, False), (127, False)])
def test_a_command_that_was_not_there_did_not_end_well(code, well):
    result = ExecResult(code, "", "", timed_out=False, wall_s=1.0)

    assert Shell(ShellSettings(command="x")).ended_well(result) is well


@pytest.mark.parametrize("whole_calls", [False, True])
def test_a_program_that_mends_calls_can_be_given_whole_ones(whole_calls):
    assert Shell(ShellSettings(command="a", whole_calls=whole_calls)).whole_calls is whole_calls
