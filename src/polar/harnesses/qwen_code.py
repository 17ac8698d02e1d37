"""Qwen Code: a Node program that speaks OpenAI Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from polar.harnesses.base import Installation, Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.npm import NpmProgram
from polar.harnesses.settings import QwenCodeSettings
from polar.runtimes.base import ExecResult, ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "QwenCode"]

VERSION = "0.24.4"

_PROGRAM = NpmProgram("qwen_code", "@qwen-code/qwen-code", VERSION, "qwen")
_SETTINGS = ".qwen/settings.json"
_MEMORY = "managed memory extraction subagent"
_COMPACTION = "You are the component that summarizes a conversation"
_BROKEN = (126, 127)


class QwenCode:
    """Starts `qwen`, told by flags, variables and its settings file.

    Usage statistics, updates and (unless it is asked for) the memory sub-agent are off.

    Args:
        settings: How it behaves.
    """

    name = "qwen_code"

    def __init__(self, settings: QwenCodeSettings | None = None) -> None:
        self._settings = settings or QwenCodeSettings()

    def find(self) -> Installation:
        """Look for `qwen` (the setting, Polar's own installation, then PATH) and for Node.

        Raises:
            HarnessMissing: One of them is nowhere.
        """
        return self._installation

    def install_command(self) -> tuple[tuple[str, ...], ...]:
        """Install the pinned version into a folder of its own."""
        return _PROGRAM.install_command(self._settings.cache)

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session. The instruction goes in by stdin: it may begin with `-`."""
        settings = self._settings
        argv = (
            *(
                *_PROGRAM.launcher(self._node, self._settings.cache),
                str(self._installation.executable),
                "--yolo",
            ),
            *("--auth-type", "openai", "--model", request.model),
            *(("--bare",) if settings.bare else ()),
            *settings.extra_args,
        )
        env = {
            "OPENAI_BASE_URL": f"{request.base_url}/v1",
            "OPENAI_API_KEY": request.key,
            "OPENAI_MODEL": request.model,
        }
        files = {_SETTINGS: json.dumps(self._own_settings())}
        return Launch(ProcessSpec(argv, env, stdin=request.instruction), files)

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the shell tool for each command, and say at last that it is done."""
        return tool_turns(
            "run_shell_command",
            commands,
            lambda command: {"command": command, "is_background": False},
        )

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, the memory sub-agent, compactions, side and foreign calls apart."""
        if "x-stainless-lang" not in headers:
            return "foreign"
        first = chat.messages[0].content if chat.messages else ""
        if first.startswith(_COMPACTION):
            return "compaction"
        if _MEMORY in first:
            return "auxiliary"
        return "main" if chat.tools else "auxiliary"

    def ended_well(self, result: ExecResult) -> bool:
        """Tell an agent that ended from a program that was not there."""
        return result.exit_code not in _BROKEN

    @cached_property
    def _installation(self) -> Installation:
        return _PROGRAM.find(self._settings.executable, self._settings.cache, self._node)

    @cached_property
    def _node(self) -> Path:
        return _PROGRAM.find_node(self._settings.node, self._settings.cache, least="20")

    def _own_settings(self) -> dict[str, object]:
        return {
            "privacy": {"usageStatisticsEnabled": False},
            "memory": {"enableManagedAutoMemory": self._settings.memory},
            "general": {"enableAutoUpdate": False},
            "model": {"generationConfig": {"contextWindowSize": self._settings.context_window}},
        }
