"""The terminal: one console for what commands say, one for errors, and their colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text
from rich.theme import Theme

from polar.errors import PolarError

__all__ = ["console", "errors", "print_error", "progress_line"]

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


def print_error(error: PolarError) -> None:
    """Say what went wrong, where, and what to do about it."""
    line = Text.assemble(("error: ", "fail"), error.what)
    if error.where:
        line.append(f" (at {error.where})")
    errors.print(line, soft_wrap=True)
    if error.fix:
        errors.print(Text(f"  fix: {error.fix}"), soft_wrap=True)


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
