"""Harnesses that come as Python packages: what their presets share, and how programs are found."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, TypeVar

from polar.harnesses.base import Installation
from polar.harnesses.installed import InstalledHarness, located
from polar.harnesses.installing import interpreter_of, own_folder, python_folders
from polar.harnesses.settings import InstalledSettings

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
        own = self.folder(cache) / "bin" / self.program
        return located(
            executable,
            own if self._is_installed(own) else None,
            None if self.program == PYTHON else self.program,
            what=self.package,
            version=self.version,
            folder=self.folder(cache),
            preset=self.name,
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


class PipHarness(InstalledHarness[Settings]):
    """The half of a preset that is the same for every program of a Python package.

    Args:
        settings: How it behaves.
    """

    program: ClassVar[PipProgram]
    broken: ClassVar[tuple[int, ...]] = (1, 2, 126, 127)
    """Exit codes of a program that broke (an exception, a wrong flag) or was not there."""

    @cached_property
    def _python(self) -> Path | None:
        return self.program.interpreter(self._installation.executable)
