"""Presets of programs that Polar installs: the half that is the same, wherever one comes from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from polar.errors import HarnessMissing
from polar.harnesses.base import Installation
from polar.harnesses.extensions import shown_folders
from polar.harnesses.settings import InstalledSettings
from polar.runtimes.base import ExecResult

__all__ = ["InstalledHarness", "InstalledProgram", "located"]


class InstalledProgram(Protocol):
    """One pinned program."""

    def install_command(self, cache: Path) -> tuple[tuple[str, ...], ...]:
        """Install it into a folder of its own."""
        ...

    def find(self, executable: Path | None, cache: Path) -> Installation:
        """Look for it: the setting, Polar's own installation, then PATH."""
        ...


Settings = TypeVar("Settings", bound=InstalledSettings)


class InstalledHarness(Generic[Settings]):
    """The half of a preset that is the same for every installed program.

    Args:
        settings: How it behaves.
    """

    program: ClassVar[InstalledProgram]
    agent_header: str | None = None
    agent_tool: tuple[str, str] | None = None
    whole_calls: bool = False
    broken: ClassVar[tuple[int, ...]] = (126, 127)
    """Exit codes of a program that broke or was not there, whatever the model did."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def find(self) -> Installation:
        """Look for the program (the setting, Polar's own installation, then PATH).

        Raises:
            HarnessMissing: It, or what runs it, is nowhere.
            ConfigError: What it is to be shown is not there.
        """
        found = self._installation
        return replace(found, read_only=(*found.read_only, *shown_folders(self._settings)))

    def install_command(self) -> tuple[tuple[str, ...], ...]:
        """Install the pinned version into a folder of its own."""
        return self.program.install_command(self._settings.cache)

    def ended_well(self, result: ExecResult) -> bool:
        """Tell an agent that ended from a program that broke."""
        return result.exit_code not in self.broken

    @cached_property
    def _installation(self) -> Installation:
        return self.program.find(self._settings.executable, self._settings.cache)


def located(  # noqa: PLR0913 - the places to look, and what is said where it is in none
    executable: Path | None,
    own: Path | None,
    on_path: str | None,
    *,
    what: str,
    version: str,
    folder: Path,
    preset: str,
) -> Path:
    """Find a program: where the settings say, in Polar's own installation, then on PATH.

    Args:
        executable: Where the settings say that it is.
        own: Polar's own, if it is installed.
        on_path: Its name on PATH; absent: it is not looked for there.
        what: Names it in errors.
        version: The version that Polar installs.
        folder: Where Polar installs it.
        preset: The preset's name.

    Raises:
        HarnessMissing: It is nowhere.
    """
    if executable is not None:
        program = executable.expanduser().absolute()
        if program.is_file():
            return program
        raise HarnessMissing(
            f"{what} is not where the settings say",
            where=str(program),
            fix="Correct `executable`, or leave it out.",
        )
    if own is not None:
        return own
    if on_path is not None and (found := shutil.which(on_path)) is not None:
        return Path(found)
    raise HarnessMissing(
        f"{what} {version} is not installed",
        where=str(folder),
        fix=f"Run `polar install {preset}`.",
    )
