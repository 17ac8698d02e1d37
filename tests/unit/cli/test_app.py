"""The `polar` command: lazy, one clear error each, exit codes that scripts can use."""

import errno
import signal
import subprocess
import sys

import pytest

from polar import __version__
from polar.cli import app, commands
from polar.errors import ContextOverflow, PolarError, SetupError


def broken() -> None:
    """Fail in a way that nobody foresaw."""
    raise ZeroDivisionError("nobody foresaw this")


def overflowing() -> None:
    """Fail in a way that Polar foresees."""
    raise ContextOverflow(prompt_tokens=9, max_context=8)


def without_package() -> None:
    """Need a package that is not installed."""
    import a_package_that_nobody_has  # noqa: F401


def interrupted() -> None:
    """Be interrupted at the keyboard."""
    signal.raise_signal(signal.SIGINT)


def terminated() -> None:
    """Be asked to end."""
    signal.raise_signal(signal.SIGTERM)


def test_a_job_that_a_shell_put_in_the_background_can_be_ended_all_the_same(polar):
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    code, _, _ = polar(command=terminated)

    assert code == 143


@pytest.fixture
def polar(capsys, monkeypatch):
    """Run the command line; returns exit code, standard output and standard error."""

    def run(*arguments: str, command=None) -> tuple[int, str, str]:
        if command is not None:
            target = f"{__name__}:{command.__name__}"
            monkeypatch.setitem(commands.COMMANDS, "trial", commands.Command(target, "A trial."))
            arguments = ("trial", *arguments)
        with pytest.raises(SystemExit) as ended:
            app.main(arguments)
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


def odd() -> None:
    """Fail with what looks like markup and would steer a terminal."""
    raise ValueError("[/red] [bold \033]0;evil\007")


def odd_error() -> None:
    """Fail with the same, on purpose."""
    raise PolarError("[/red] [bold \033]0;evil\007", where="a[/b]", fix="[/c]")


@pytest.mark.parametrize("command", [odd, odd_error])
def test_what_others_wrote_is_neither_markup_nor_does_it_steer_the_terminal(polar, command):
    _, _, complained = polar(command=command)

    assert "[/red] [bold" in complained
    assert "\033]" not in complained
    assert "Traceback" not in complained


def full() -> None:
    """Meet a full disk where nobody expected it."""
    raise OSError(errno.ENOSPC, "No space left on device", "/somewhere")


def exhausted() -> None:
    """Find no memory."""
    raise MemoryError


@pytest.mark.parametrize(
    ("command", "told", "remedy"),
    [
        (full, "No space left on device (at /somewhere)", "Free some space"),
        (exhausted, "no memory", "ulimit -v"),
    ],
)
def test_what_the_machine_refuses_is_no_defect_of_polar(polar, command, told, remedy):
    code, _, complained = polar(command=command)

    assert code == SetupError.exit_code
    assert told in complained
    assert remedy in complained
    assert "defect" not in complained


def test_an_argument_that_is_no_text_is_refused_before_anything_is_written(polar):
    code, _, complained = polar("show", "r\udcff")

    assert code == 2
    assert "not UTF-8" in complained


def test_a_paragraph_of_the_help_flows_and_its_examples_stay_lines():
    text = """Do it.

    One line
    and another.

    Examples:
        polar a

        polar b
    """
    flowing = commands.flowing(text).split("\n\n")
    assert flowing == ["Do it.", "One line and another.", "Examples:\n    polar a", "    polar b"]


def test_the_version_is_told(polar):
    assert polar("--version") == (0, f"polar {__version__}\n", "")


def test_the_help_lists_every_command(polar):
    code, told, _ = polar("--help")

    assert code == 0
    assert all(name in told for name in commands.COMMANDS)


@pytest.mark.parametrize("name", list(commands.COMMANDS))
def test_the_help_of_every_command_has_examples(polar, name):
    code, told, _ = polar(name, "--help")

    assert code == 0
    assert "Examples:" in told
    assert f"polar {name}" in told.split("Examples:")[1]


def test_an_error_is_one_message_and_its_exit_code(polar):
    code, told, error = polar(command=overflowing)

    assert (code, told) == (4, "")
    assert error == (
        "error: the prompt has 9 tokens, the model's context window 8\n"
        "  fix: Shorten the conversation or use a model with a longer context.\n"
    )


@pytest.mark.parametrize("flag", ["--debug", None])
def test_a_stack_trace_is_shown_only_when_asked_for(polar, monkeypatch, flag):
    monkeypatch.delenv("POLAR_DEBUG", raising=False)

    code, _, error = polar(*([flag] if flag else []), command=broken)

    assert code == 70
    assert ("Traceback" in error) == (flag is not None)
    assert "nobody foresaw this" in error
    assert "--debug" in error


def test_a_missing_package_is_told_with_what_to_install(polar):
    code, _, error = polar(command=without_package)

    assert code == 3
    assert "a_package_that_nobody_has is not installed" in error
    assert "polar-rl[train]" in error


@pytest.mark.parametrize(("command", "expected"), [(interrupted, 130), (terminated, 143)])
def test_an_interrupt_and_a_termination_end_quietly_with_their_own_codes(polar, command, expected):
    code, _, error = polar(command=command)

    assert code == expected
    assert error == ""


STARTED = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
"""Whoever starts the tests may have SIGHUP ignored, as nohup does, and children inherit that."""


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("module", ["typer", "pydantic"])
def test_a_signal_during_an_import_ends_the_command_quietly(tmp_path, module, number, expected):
    (tmp_path / f"{module}.py").write_text(
        f"import os, time\ntry: os.kill(os.getpid(), {number:d}); time.sleep(30)\n"
        "except BaseException: pass\n"  # as some libraries do around what they can do without
    )
    program = f"sys.path.insert(0, {str(tmp_path)!r}); from polar.cli.app import main; main()"

    ended = subprocess.run(
        [sys.executable, "-c", STARTED + program, "show", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (expected, "", "")


def test_a_signal_after_the_work_is_done_is_quiet_as_well():
    program = (
        "import atexit, os, time; atexit.register(time.sleep, 30); "
        "atexit.register(os.kill, os.getpid(), signal.SIGINT); "
        "from polar.cli.app import main; main(['--version'])"
    )

    ended = subprocess.run(
        [sys.executable, "-c", STARTED + program], capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (130, "")


def test_an_unknown_command_is_a_wrong_flag(polar):
    code, _, error = polar("trian")

    assert code == 2
    assert "trian" in error


def test_a_flag_after_a_double_dash_is_the_harness_own():
    assert commands.take_debug(["rollout", "--", "x", "--debug"]) == (
        ["rollout", "--", "x", "--debug"],
        False,
    )


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_what_polar_is_and_can_is_told_without_reading_any_setting(flag):
    program = (
        "import sys\nfrom polar.cli.app import main\n"
        f"try: main([{flag!r}])\n"
        "except SystemExit: pass\n"
        "slow = {'polar.config', 'pydantic', 'numpy', 'asyncio'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("command", ["", "--help", "train", "rollout", "sft", "show", "doctor"])
def test_light_commands_do_not_import_torch(command):
    arguments = [command, "--help"] if command and command != "--help" else [command]
    program = (
        "import sys\nfrom polar.cli.app import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
        "assert 'transformers' not in sys.modules, 'transformers'\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
