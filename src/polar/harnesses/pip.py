"""Harnesses that come as Python packages: what their presets share, and how programs are found."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from polar.errors import HarnessMissing
from polar.harnesses.base import Installation
from polar.harnesses.extensions import shown_folders
from polar.harnesses.installing import interpreter_of, own_folder, python_folders
from polar.harnesses.settings import InstalledSettings
from polar.runtimes.base import ExecResult

__all__ = ["PYTHON", "PipHarness", "PipProgram"]

PYTHON = "python"
"""The program of a package that is a library: the interpreter that has it."""


@dataclass(frozen=True, slots=True)
class PipProgram:
    """One pinned Python package, in a virtual environment of its own.

    Args:
        name: The preset's name.
        package: Name of the package.
        version: The version that is known to work.
        program: Name of the program that the package installs, or `PYTHON`.
    """

    name: str
    package: str
    version: str
    program: str

    def folder(self, cache: Path) -> Path:
        """Name the folder of Polar's own installation."""
        return own_folder(cache, f"{self.name}-{self.version}")

    def install_command(self, cache: Path) -> tuple[tuple[str, ...], ...]:
        """Make a virtual environment and install the pinned version there."""
        folder = self.folder(cache)
        return (
            (sys.executable, "-m", "venv", str(folder)),
            (
                *(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"),
                *("--disable-pip-version-check", f"{self.package}=={self.version}"),
            ),
        )

    def find(self, executable: Path | None, cache: Path) -> Installation:
        """Look for the program: the setting, Polar's own installation, then PATH.

        Args:
            executable: Where the settings say that it is.
            cache: Folder of Polar's own installations.

        Raises:
            HarnessMissing: It is nowhere.
        """
        program = self._program(executable, cache)
        python = self.interpreter(program)
        shown = (program.resolve().parent.parent,) if python is None else python_folders(python)
        return Installation(
            program, self._version(program, python), shown, known_version=self.version
        )

    def interpreter(self, program: Path) -> Path | None:
        """Say which interpreter runs the program; absent: it is no script of a Python."""
        return program if self.program == PYTHON else interpreter_of(program)

    def _program(self, executable: Path | None, cache: Path) -> Path:
        if executable is not None:
            program = executable.expanduser().absolute()
            if program.is_file():
                return program
            raise HarnessMissing(
                f"{self.package} is not where the settings say",
                where=str(program),
                fix="Correct `executable`, or leave it out.",
            )
        own = self.folder(cache) / "bin" / self.program
        if self._is_installed(own):
            return own
        on_path = None if self.program == PYTHON else shutil.which(self.program)
        if on_path is not None:
            return Path(on_path)
        raise HarnessMissing(
            f"{self.package} {self.version} is not installed",
            where=str(self.folder(cache)),
            fix=f"Run `polar install {self.name}`.",
        )

    def _is_installed(self, own: Path) -> bool:
        """Tell a whole installation from one that broke off: an interpreter is there early."""
        return own.is_file() and (self.program != PYTHON or self._version(own, own) != _UNKNOWN)

    def _version(self, program: Path, python: Path | None) -> str:
        """Read the version from the installed package's metadata folder."""
        script = program.resolve() if python is None else python
        begin = f"{self.package.replace('-', '_')}-"
        for found in (script.parent.parent / "lib").glob(
            f"python*/site-packages/{begin}*.dist-info"
        ):
            return found.name.removeprefix(begin).removesuffix(".dist-info")
        return _UNKNOWN


_UNKNOWN = "unknown"

Settings = TypeVar("Settings", bound=InstalledSettings)


class PipHarness(Generic[Settings]):
    """The half of a preset that is the same for every program of a Python package.

    Args:
        settings: How it behaves.
    """

    program: ClassVar[PipProgram]
    agent_header: str | None = None
    broken: ClassVar[tuple[int, ...]] = (1, 2, 126, 127)
    """Exit codes of a program that broke (an exception, a wrong flag) or was not there."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def find(self) -> Installation:
        """Look for the program: the setting, Polar's own installation, then PATH.

        Raises:
            HarnessMissing: It is nowhere.
            ConfigError: What it is to be shown is not there.
        """
        found = self._installation
        return replace(found, read_only=(*found.read_only, *shown_folders(self._settings)))

    def install_command(self) -> tuple[tuple[str, ...], ...]:
        """Make a virtual environment of its own and install the pinned version there."""
        return self.program.install_command(self._settings.cache)

    def ended_well(self, result: ExecResult) -> bool:
        """Tell an agent that ended from a program that broke (an exception, a wrong flag)."""
        return result.exit_code not in self.broken

    @cached_property
    def _installation(self) -> Installation:
        return self.program.find(self._settings.executable, self._settings.cache)

    @cached_property
    def _python(self) -> Path | None:
        return self.program.interpreter(self._installation.executable)
