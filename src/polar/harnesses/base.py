"""What a harness preset is: how to find, start and read one agent program, without changing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from polar.runtimes.base import ExecResult, Place, ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["Harness", "Installation", "Launch", "LaunchRequest"]


@dataclass(frozen=True, slots=True)
class Installation:
    """A harness found on this machine."""

    executable: Path
    version: str
    read_only: tuple[Path, ...]
    """Folders that a sandbox must show."""
    known_version: str | None = None
    """Version that the preset is known to work with; absent: any."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What a preset needs to know to start one session."""

    instruction: str | None
    """What to do; absent only where somebody at the terminal says it."""
    model: str
    """Model name the harness should send."""
    key: str
    """The session key; also the last part of the base URL."""
    place: Place
    """Paths and gateway address as seen from inside the sandbox."""
    interactive: bool = False
    """Whether the program's own screen is started, for somebody at the terminal."""
    asks: bool = False
    """Whether it keeps its own approvals. In a sandbox it asks nobody: the runtime confines it."""

    @property
    def base_url(self) -> str:
        """`http://HOST:PORT/s/KEY`, to which the preset adds what its dialect wants (`/v1`)."""
        return f"{self.place.gateway_url}/s/{self.key}"


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one session."""

    process: ProcessSpec
    files: Mapping[str, str] = field(default_factory=dict)
    """Config files: path relative to the sandbox's home -> content."""
    hides: tuple[str, ...] = ()
    """Beginnings of variables that, where the user's own environment has them, would make the
    program speak to somebody else; a sandbox's environment has none."""


class Harness(Protocol):
    """A preset: declarative and small."""

    name: str
    agent_header: str | None
    """Header, in lower case, in which each of its agents has a value of its own; absent: none."""
    agent_tool: tuple[str, str] | None
    """Without such a header: the tool by which the model starts an agent, and its argument that is
    the agent's errand; absent: there is none."""
    whole_calls: bool
    """Whether it must be given tool calls whole, for it mends a call that was cut and runs it."""

    def find(self) -> Installation:
        """Look for the harness: the setting, Polar's own installations, then PATH.

        Raises:
            HarnessMissing: Says how to install it.
        """
        ...

    def install_command(self) -> tuple[tuple[str, ...], ...]:
        """Commands that install the pinned version into Polar's own folder; empty if none."""
        ...

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session: pure."""
        ...

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Write the replies by which an expert runs these shell commands, one a turn, and ends.

        Returns:
            Assistant messages in order; empty where the preset cannot know (any command line).
        """
        ...

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls from auxiliary ones by the harness's declared rules: pure."""
        ...

    def ended_well(self, result: ExecResult) -> bool:
        """Read the exit: false means that the harness itself broke, not that the task failed."""
        ...
