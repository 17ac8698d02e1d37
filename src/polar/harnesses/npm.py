"""Harnesses that come as npm packages: what their presets share, and how programs are found."""

from __future__ import annotations

import json
import platform
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, TypeVar

from polar.errors import HarnessMissing
from polar.harnesses.base import Installation, LaunchRequest
from polar.harnesses.installed import InstalledHarness, located
from polar.harnesses.installing import own_folder
from polar.harnesses.settings import NodeProgramSettings, ProgramSettings

__all__ = ["NodeHarness", "NpmHarness", "NpmProgram"]

_COMPILED = "compiled"
_WITH_COMPILED = (
    'own=$1; shift; mkdir -p "$own" && for made in "$0"/*; do tag=${made##*/}; '
    'ln -sfn "$made" "$own/${tag%-*}-$(id -u)"; done; '
    'export NODE_COMPILE_CACHE="$own"; exec "$@"'
)


@dataclass(frozen=True, slots=True)
class NpmProgram:
    """One pinned program of an npm package.

    Args:
        name: The preset's name.
        package: Name of the package.
        version: The version that is known to work.
        program: Name of the program that the package installs.
        native: Pattern, below `node_modules`, of the native program that the package brings;
            absent: it is a script for Node.
        node: Version of Node that is installed beside it; absent: the machine's own is used.
        least_node: The oldest version of Node that runs it; absent: it needs none.
    """

    name: str
    package: str
    version: str
    program: str
    native: str | None = None
    node: str | None = None
    least_node: str | None = None

    def install_command(self, cache: Path) -> tuple[tuple[str, ...], ...]:
        """Install the pinned version into a folder of its own."""
        packages = [f"{self.package}@{self.version}"]
        if self.node is not None:
            packages.append(f"{_node_package()}@{self.node}")
        install = (
            *("npm", "install", "--prefix", str(self.folder(cache)), "--no-audit"),
            *("--no-fund", "--loglevel=error", *packages),
        )
        return (install, *self._compile_command(cache))

    def find(self, executable: Path | None, cache: Path, node: Path | None = None) -> Installation:
        """Look for the program: the setting, Polar's own installation, then PATH.

        Args:
            executable: Where the settings say that it is.
            cache: Folder of Polar's own installations.
            node: The interpreter that a sandbox must show too.

        Raises:
            HarnessMissing: It is nowhere.
        """
        program = self._program(executable, cache).resolve()
        package = next(
            (above for above in program.parents if (above / "package.json").is_file()),
            program.parent,
        )
        root = next(
            (above.parent for above in program.parents if above.name == "node_modules"), package
        )
        folders = [root]
        if node is not None:
            real = node.resolve()
            folders.append(real.parent.parent if real.parent.name == "bin" else real.parent)
        return Installation(program, _version(package), tuple(folders), known_version=self.version)

    def find_node(self, chosen: Path | None, cache: Path) -> Path:
        """Find Node: the setting, the one installed with the program, then PATH.

        Args:
            chosen: Where the settings say that it is.
            cache: Folder of Polar's own installations.

        Raises:
            HarnessMissing: It is nowhere.
        """
        own = self._own_node(cache)
        if chosen is None and own.is_file():
            return own
        found = shutil.which("node") if chosen is None else str(chosen.expanduser().absolute())
        if found is None or not Path(found).is_file():
            raise HarnessMissing(
                f"{self.program} needs Node {self.least_node} or newer",
                where=found,
                fix="Install it from nodejs.org.",
            )
        return Path(found)

    def launcher(self, node: Path, cache: Path, home: str) -> tuple[str, ...]:
        """Say how to start the program's script: what goes before the script.

        With its own Node, the code that was compiled at installation is used again: half of a
        short session is compiling. Node keeps such code by user id and trusts only its own, so
        that the sandbox's user gets links to what it can read but not write.
        """
        compiled = self.folder(cache) / _COMPILED
        if node != self._own_node(cache) or not compiled.is_dir():
            return (str(node),)
        return ("/bin/sh", "-c", _WITH_COMPILED, str(compiled), f"{home}/.compiled", str(node))

    def folder(self, cache: Path) -> Path:
        """Name the folder of Polar's own installation."""
        beside = "" if self.node is None else f"-node-{self.node}"
        return own_folder(cache, f"{self.name}-{self.version}{beside}")

    def _own_node(self, cache: Path) -> Path:
        return self.folder(cache) / "node_modules" / _node_package() / "bin" / "node"

    def _compile_command(self, cache: Path) -> tuple[tuple[str, ...], ...]:
        """Start the program once, so that Node keeps what it compiles."""
        if self.node is None:
            return ()
        folder = self.folder(cache)
        command = (
            *("env", f"HOME={folder / 'first-home'}", f"NODE_COMPILE_CACHE={folder / _COMPILED}"),
            *(str(self._own_node(cache)), str(folder / "node_modules" / ".bin" / self.program)),
            "--help",
        )
        return (command,)

    def _program(self, executable: Path | None, cache: Path) -> Path:
        modules = self.folder(cache) / "node_modules"
        own = _first(modules, self.native) if self.native else modules / ".bin" / self.program
        return located(
            executable,
            own if own is not None and own.is_file() else None,
            self.program,
            what=self.program,
            version=self.version,
            folder=self.folder(cache),
            preset=self.name,
        )


Settings = TypeVar("Settings", bound=ProgramSettings)
NodeSettings = TypeVar("NodeSettings", bound=NodeProgramSettings)


class NpmHarness(InstalledHarness[Settings]):
    """The half of a preset that is the same for every native program of an npm package.

    Args:
        settings: How it behaves.
    """

    program: ClassVar[NpmProgram]

    def _start(self, request: LaunchRequest) -> tuple[str, ...]:
        """Say what every command line begins with."""
        return (str(self._installation.executable),)


class NodeHarness(NpmHarness[NodeSettings]):
    """The same for a script that Node runs."""

    @cached_property
    def _installation(self) -> Installation:
        return self.program.find(self._settings.executable, self._settings.cache, self._node)

    @cached_property
    def _node(self) -> Path:
        return self.program.find_node(self._settings.node, self._settings.cache)

    def _start(self, request: LaunchRequest) -> tuple[str, ...]:
        launcher = self.program.launcher(self._node, self._settings.cache, request.place.home)
        return (*launcher, str(self._installation.executable))


def _node_package() -> str:
    machine = "arm64" if platform.machine() in ("aarch64", "arm64") else "x64"
    return f"node-linux-{machine}"


def _first(modules: Path, pattern: str) -> Path | None:
    """Find the native program; packages for other machines may lie beside it."""
    return min(modules.glob(pattern), default=None)


def _version(package: Path) -> str:
    path = package / "package.json"
    if not path.is_file():
        return "unknown"
    return str(json.loads(path.read_text(encoding="utf-8")).get("version", "unknown"))
