"""Any command line as a harness: Polar's address is put into its arguments and environment."""

from __future__ import annotations

import shlex
import string
from collections.abc import Mapping, Sequence
from pathlib import Path

from polar.errors import ConfigError
from polar.harnesses.base import Installation, Launch, LaunchRequest
from polar.harnesses.settings import ShellSettings
from polar.runtimes.base import ExecResult, ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["Shell"]

_SHELL = Path("/bin/sh")
_FIELDS = frozenset({"instruction", "base_url", "key", "model"})
_NOT_STARTED = (126, 127)


class Shell:
    """Runs a command line of the user's.

    `{base_url}` and the variables carry the address with `/v1`, as OpenAI's clients want it.

    Args:
        settings: The command line and its surroundings.

    Raises:
        ConfigError: The command names a field that does not exist.
    """

    name = "shell"
    agent_header: str | None = None
    agent_tool: tuple[str, str] | None = None

    def __init__(self, settings: ShellSettings) -> None:
        self._settings = settings
        self.whole_calls = settings.whole_calls
        _check(settings.command)

    def find(self) -> Installation:
        """Find the shell, which runs the command."""
        return Installation(_SHELL, version="", read_only=self._settings.read_only)

    def install_command(self) -> tuple[tuple[str, ...], ...]:
        """Install nothing: the command is the user's own."""
        return ()

    def launch(self, request: LaunchRequest) -> Launch:
        """Fill in the command line."""
        base_url = f"{request.base_url}/v1"
        values = {
            "instruction": request.instruction or "",
            "base_url": base_url,
            "key": request.key,
            "model": request.model,
        }
        quoted = {name: shlex.quote(value) for name, value in values.items()}
        env = {
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_BASE": base_url,
            "OPENAI_API_KEY": request.key,
            "OPENAI_MODEL": request.model,
            "POLAR_INSTRUCTION": request.instruction or "",
            **self._settings.env,
        }
        line = self._settings.command.format(**quoted)
        return Launch(ProcessSpec((str(_SHELL), "-c", line), env))

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Know of no expert: a command line may speak to the model in any form."""
        return ()

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Take every call for a main one: nothing is known about the program."""
        return "main"

    def ended_well(self, result: ExecResult) -> bool:
        """Tell whether the command was there and could be started."""
        return result.exit_code not in _NOT_STARTED


def _check(command: str) -> None:
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(command) if name is not None}
    except ValueError as error:
        raise ConfigError(
            f"the command's braces do not match: {error}",
            where="harness.command",
            fix="Write `{{` and `}}` for braces that are meant as such.",
        ) from error
    if unknown := sorted(fields - _FIELDS):
        raise ConfigError(
            f"the command has unknown fields: {', '.join(unknown)}",
            where="harness.command",
            fix=f"Use {', '.join(sorted(_FIELDS))}, and `{{{{` for a brace.",
        )
