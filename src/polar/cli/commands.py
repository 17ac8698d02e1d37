"""The subcommands of `polar`: finds the module of one, and turns errors into exit codes."""

from __future__ import annotations

import errno
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from polar import __version__
from polar.cli.console import console, errors, plain, print_error
from polar.cli.signals import INTERRUPTED, EndRequests, end_at_once
from polar.errors import ConfigError, PolarError, SetupError

__all__ = ["COMMANDS", "Command", "flowing", "run_command_line", "take_debug"]

_UNEXPECTED = 70
"""Exit code of a defect in Polar itself (EX_SOFTWARE of sysexits.h)."""

_EPILOG = (
    "Exit codes: 0 done, 2 wrong setting or flag, 3 something is missing on this machine, 4 engine,"
    " 5 sandbox, 6 journal, 7 gateway, 8 token fidelity, 9 training, 70 defect in Polar,"
    " 130 interrupted (128 and the number of the signal)."
)


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand, imported only when it is the one that was asked for."""

    target: str
    """`module:function`"""
    summary: str

    def load(self) -> Callable[..., Any]:
        """Import the command's function."""
        module, _, function = self.target.partition(":")
        loaded: Callable[..., Any] = getattr(import_module(module), function)
        return loaded


COMMANDS: dict[str, Command] = {
    "demo": Command(
        "polar.cli.demo:demo",
        "Train a small model through a real harness, from nothing.",
    ),
    "train": Command("polar.cli.train:train", "Train a model through a harness, or resume a run."),
    "rollout": Command(
        "polar.cli.rollout:rollout", "Run tasks through a harness and keep the trajectories."
    ),
    "run": Command("polar.cli.run:run", "Run a harness in this folder, and keep the session."),
    "sft": Command("polar.cli.sft:sft", "Train a model on the good ones of recorded sessions."),
    "show": Command("polar.cli.show:show", "Look at a session, token by token."),
    "verify": Command("polar.cli.verify:verify", "Check every token of a run."),
    "install": Command("polar.cli.install:install", "Install a harness for Polar to use."),
    "doctor": Command("polar.cli.doctor:doctor", "Check what this machine can do."),
}


def run_command_line(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a subcommand and exit.

    Args:
        arguments: Without the program's name; those of this process if left out.
    """
    given, debug = take_debug(list(sys.argv[1:] if arguments is None else arguments))
    requests = EndRequests()
    try:
        code = _exit_code(given, requests, debug=debug)
    finally:
        end_at_once()  # a thread may still download something
    sys.exit(requests.exit_code(code))


def _exit_code(given: list[str], requests: EndRequests, *, debug: bool) -> int:
    try:
        _check_texts(given)
        app = _app(_chosen(given))
        requests.listen()
        app(args=given, prog_name="polar")
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        return ended.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if debug or _debug_is_set():
            errors.print_exception()
        return _told(error)
    return 0


def _told(error: Exception) -> int:
    """Say what went wrong, and give the exit code for it."""
    known = (
        error
        if isinstance(error, PolarError)
        else _missing_package(error) or _refused_by_the_system(error)
    )
    if known is None:
        _print_unexpected(error)
        return _UNEXPECTED
    print_error(known)
    return known.exit_code


def _debug_is_set() -> bool:
    from polar.config import environment  # half a second, which --help need not wait for

    return environment().debug


def _app(chosen: str | None) -> typer.Typer:
    """Build the app with the chosen command in full and the others by name and summary."""
    app = typer.Typer(
        name="polar",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog=_EPILOG)(_root)
    for name, command in COMMANDS.items():
        if name == chosen:
            loaded = command.load()
            app.command(name, help=flowing(loaded.__doc__ or ""))(loaded)
        else:
            app.command(name, help=command.summary)(_stub)
    return app


def flowing(text: str) -> str:
    """Join the lines of each paragraph, which the terminal wraps anew; examples stay lines."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        paragraph
        if paragraph.startswith("Examples:") or paragraph.startswith(" ")
        else " ".join(paragraph.split("\n"))
        for paragraph in paragraphs
    )


def _version(asked: bool) -> None:
    if asked:
        console.print(f"polar {__version__}", highlight=False)
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_version),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the stack trace of an error.")
    ] = False,
) -> None:
    """Reinforcement learning for any agent harness, at the model API boundary.

    Begin with [bold]polar doctor[/bold], then [bold]polar demo[/bold]. Each command's --help has
    examples.
    """


def _stub() -> None:
    """Stand for a command that was not chosen."""


def take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """Take `--debug` out from wherever it stands before a `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    before = [argument for argument in arguments[:end] if argument != "--debug"]
    return before + arguments[end:], len(before) < end


def _chosen(arguments: Sequence[str]) -> str | None:
    return next((argument for argument in arguments if not argument.startswith("-")), None)


def _missing_package(error: Exception) -> SetupError | None:
    """Say what to install where a heavy optional package is not there."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    if package == "polar":
        return None
    return SetupError(
        f"the package {package} is not installed",
        fix="Install Polar with what training needs: pip install 'polar-rl[train]'.",
    )


_REFUSALS = {
    errno.ENOSPC: "Free some space there.",
    errno.EDQUOT: "Free some space there, or raise the quota.",
    errno.EROFS: "Name a folder that can be written.",
    errno.EACCES: "Check the permissions there.",
    errno.EPERM: "Check the permissions there.",
    errno.EMFILE: "Raise the limit of open files: ulimit -n 4096.",
    errno.ENFILE: "Close programs that hold many files open.",
    errno.ENOMEM: "Free some memory, or ask for less.",
    errno.EIO: "Check the disk.",
}
"""What the system refuses through no fault of Polar -> what to do about it."""


def _refused_by_the_system(error: Exception) -> SetupError | None:
    if isinstance(error, MemoryError):
        fix = "Free some memory, raise its limit (ulimit -v), or ask for less."
        return SetupError("there is no memory left", fix=fix)
    if not isinstance(error, OSError) or error.errno not in _REFUSALS:
        return None
    where = None if error.filename is None else str(error.filename)
    return SetupError(f"the system says: {error.strerror}", where=where, fix=_REFUSALS[error.errno])


def _check_texts(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no text before a file is half written with them."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"an argument is not UTF-8: {argument!r}", fix="Rename the file or folder."
            ) from error


def _print_unexpected(error: Exception) -> None:
    what = plain(f"a defect in Polar: {type(error).__name__}: {error}")
    errors.print(f"[fail]error:[/fail] {what}", soft_wrap=True)
    errors.print("  fix: Run again with --debug and report what it prints.", soft_wrap=True)
