"""The `polar` command: takes signals from its first moment on, and only then imports the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from polar.cli.signals import end_at_once

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        arguments: Without the program's name; those of this process if left out.
    """
    end_at_once()
    from polar.cli.commands import run_command_line

    run_command_line(arguments)
