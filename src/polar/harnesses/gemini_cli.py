"""Gemini CLI: a Node program that speaks Google's generateContent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from polar.harnesses.base import Installation, Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.npm import NpmProgram
from polar.harnesses.settings import GeminiCliSettings
from polar.runtimes.base import ExecResult, ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "GeminiCli"]

VERSION = "0.61.0"

_PROGRAM = NpmProgram("gemini_cli", "@google/gemini-cli", VERSION, "gemini")
_SETTINGS = ".gemini/settings.json"
_BROKEN = (41, 42, 52, 55, 126, 127)
"""Its own codes for authentication, input, configuration and trust; and not started."""


class GeminiCli:
    """Starts `gemini`, told by flags, variables and its settings file.

    The model is named outright: with `auto` it asks a model which model to use.

    Args:
        settings: How it behaves.
    """

    name = "gemini_cli"

    def __init__(self, settings: GeminiCliSettings | None = None) -> None:
        self._settings = settings or GeminiCliSettings()

    def find(self) -> Installation:
        """Look for `gemini` (the setting, Polar's own installation, then PATH) and for Node.

        Raises:
            HarnessMissing: One of them is nowhere.
        """
        return self._installation

    def install_command(self) -> tuple[tuple[str, ...], ...]:
        """Install the pinned version into a folder of its own."""
        return _PROGRAM.install_command(self._settings.cache)

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session. The instruction goes in by stdin: it may begin with `-`."""
        argv = (
            *(
                *_PROGRAM.launcher(self._node, self._settings.cache),
                str(self._installation.executable),
                "--yolo",
                "--skip-trust",
            ),
            *("--model", request.model),
            *self._settings.extra_args,
        )
        env = {"GOOGLE_GEMINI_BASE_URL": request.base_url, "GEMINI_API_KEY": request.key}
        own = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False},
        }
        files = {_SETTINGS: json.dumps(own)}
        return Launch(ProcessSpec(argv, env, stdin=request.instruction), files)

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the shell tool for each command, and say at last that it is done."""
        return tool_turns("run_shell_command", commands, lambda command: {"command": command})

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, side calls (no tools) and foreign calls apart."""
        if not headers.get("user-agent", "").startswith("GeminiCLI"):
            return "foreign"
        return "main" if chat.tools else "auxiliary"

    def ended_well(self, result: ExecResult) -> bool:
        """Tell an agent that ended from a program that is set up wrongly or was not there."""
        return result.exit_code not in _BROKEN

    @cached_property
    def _installation(self) -> Installation:
        return _PROGRAM.find(self._settings.executable, self._settings.cache, self._node)

    @cached_property
    def _node(self) -> Path:
        return _PROGRAM.find_node(self._settings.node, self._settings.cache, least="20")
