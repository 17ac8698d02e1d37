"""What a runtime is: a place where a harness runs, isolated as far as the machine allows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from polar.types import Limits

__all__ = [
    "ExecResult",
    "Place",
    "Preload",
    "ProcessSpec",
    "Runtime",
    "Sandbox",
    "SandboxSpec",
]


@dataclass(frozen=True, slots=True)
class Preload:
    """A Python program that may be forked from a process that has imported its modules already.

    Starting some Python harnesses costs seconds of imports; a fork of a warm parent costs
    milliseconds and runs the same unmodified code in its own process.
    """

    python: Path
    """Interpreter of the harness's own virtual environment."""
    modules: tuple[str, ...]
    """Modules to import once, in the parent; those that do not exist are passed over."""
    entry: str
    """`module:callable`, called without arguments in the child, with `sys.argv` set."""
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What the modules must find in the environment while they are imported, in the parent."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A command to run in a sandbox."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """The whole environment, besides what the runtime itself sets (PATH, HOME, TMPDIR, LANG)."""
    stdin: str | None = None
    preload: Preload | None = None
    """A faster way to the same process, which a runtime may use."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox is made of."""

    work_dir: Path
    """Host folder, writable inside; the process starts in it."""
    limits: Limits
    read_only: tuple[Path, ...] = ()
    """Host folders that must be visible inside at the same path (harness installation)."""
    gateway_url: str | None = None
    """The one address that can be reached from inside, `http://127.0.0.1:PORT`; absent: none."""
    work_read_only: bool = False
    """Whether the work folder is read-only inside (for graders)."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a process ended."""

    exit_code: int
    """As the shell gives it: 128 + signal for a killed process."""
    stdout: str
    """At most the last 64 KiB."""
    stderr: str
    timed_out: bool
    wall_s: float


@dataclass(frozen=True, slots=True)
class Place:
    """Paths and address as the process inside sees them."""

    work_dir: str
    home: str
    gateway_url: str | None
    """Base address of the gateway as it is reached from inside."""


class Sandbox(Protocol):
    """A started sandbox."""

    @property
    def place(self) -> Place:
        """Where things are, seen from inside."""
        ...

    async def put_files(self, files: Mapping[str, str]) -> None:
        """Write config files: path relative to the sandbox's home -> text."""
        ...

    async def run(self, spec: ProcessSpec, *, timeout_s: float) -> ExecResult:
        """Run a process to its end; on timeout or cancellation kill it with all its children."""
        ...


class Runtime(Protocol):
    """Starts sandboxes."""

    def start(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Start a sandbox; leaving the context kills every process in it.

        Raises:
            RuntimeFailed: It cannot be started.
        """
        ...

    def protections(self) -> Mapping[str, bool]:
        """Say what is protected: `network`, `root_read_only`, `processes`, `memory`, `cpu`."""
        ...

    async def aclose(self) -> None:
        """Free what all sandboxes share (warm parents)."""
        ...
