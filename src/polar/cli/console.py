"""The terminal: one console for what commands say, one for errors, and their colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.text import Text
from rich.theme import Theme

from polar.errors import PolarError

__all__ = ["console", "errors", "plain", "print_error", "progress_line", "without_control"]

_CONTROL = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)}
"""Control characters -> their pictures."""

_THEME = Theme(
    {
        "ok": "green",
        "warn": "yellow",
        "fail": "bold red",
        "context": "dim",
        "sampled": "bold cyan",
        "untrained": "magenta",
        "heading": "bold",
    }
)

console = Console(theme=_THEME)
"""Standard output."""

errors = Console(theme=_THEME, stderr=True)
"""Standard error."""


def without_control(text: str) -> str:
    """Show control characters: what a model or a harness wrote must not steer the terminal."""
    return text.translate(_CONTROL)


def plain(text: object) -> str:
    """Make a text of others, a path or an error, that can stand within markup as it is."""
    return escape(without_control(str(text)))


def print_error(error: PolarError) -> None:
    """Say what went wrong, where, and what to do about it."""
    line = Text.assemble(("error: ", "fail"), without_control(error.what))
    if error.where:
        line.append(without_control(f" (at {error.where})"))
    errors.print(line, soft_wrap=True)
    if error.fix:
        errors.print(Text(without_control(f"  fix: {error.fix}")), soft_wrap=True)


@contextmanager
def progress_line(what: str) -> Iterator[Callable[[str], None]]:
    """Show that something goes on; yields a function that says what exactly.

    On anything but a terminal, each thing said is a line of its own.
    """
    if not errors.is_terminal:
        yield lambda line: errors.print(Text(line), soft_wrap=True)
        return
    with errors.status(what) as status:
        yield status.update
