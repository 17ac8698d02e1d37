"""OpenCode: a native program that speaks OpenAI Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property

from polar.harnesses.base import Installation, Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.npm import NpmProgram
from polar.harnesses.settings import OpenCodeSettings
from polar.runtimes.base import ExecResult, ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "OpenCode"]

VERSION = "1.18.33"

_PROGRAM = NpmProgram(
    "opencode", "opencode-ai", VERSION, "opencode", native="opencode-linux-*/bin/opencode"
)
_TITLE = "You are a title generator"
_COMPACTION = "context summarization agent"
_BROKEN = (126, 127)


class OpenCode:
    """Starts `opencode run`, told by variables.

    Updates, sharing, the models list and (unless it is asked for) session titles are off.

    Args:
        settings: How it behaves.
    """

    name = "opencode"

    def __init__(self, settings: OpenCodeSettings | None = None) -> None:
        self._settings = settings or OpenCodeSettings()

    def find(self) -> Installation:
        """Look for `opencode`: the setting, Polar's own installation, then PATH.

        Raises:
            HarnessMissing: It is nowhere.
        """
        return self._installation

    def install_command(self) -> tuple[tuple[str, ...], ...]:
        """Install the pinned version into a folder of its own."""
        return _PROGRAM.install_command(self._settings.cache)

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session. The instruction goes in by stdin: it may begin with `-`."""
        argv = (
            *(str(self._installation.executable), "run", "--model", f"polar/{request.model}"),
            *self._settings.extra_args,
        )
        env = {
            "OPENCODE_CONFIG_CONTENT": json.dumps(self._config(request)),
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "npm_config_offline": "true",
        }
        return Launch(ProcessSpec(argv, env, stdin=request.instruction))

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the bash tool for each command, and say at last that it is done."""
        return tool_turns(
            "bash",
            commands,
            lambda command: {"command": command, "description": "Work on the task"},
        )

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, titles, compactions and foreign calls apart."""
        if "x-session-affinity" not in headers:
            return "foreign"
        first = chat.messages[0].content if chat.messages else ""
        if _COMPACTION in first:
            return "compaction"
        return "auxiliary" if first.startswith(_TITLE) else "main"

    def ended_well(self, result: ExecResult) -> bool:
        """Tell an agent that ended from a program that was not there."""
        return result.exit_code not in _BROKEN

    @cached_property
    def _installation(self) -> Installation:
        return _PROGRAM.find(self._settings.executable, self._settings.cache)

    def _config(self, request: LaunchRequest) -> dict[str, object]:
        settings = self._settings
        limit = {"context": settings.context_window, "output": settings.max_tokens}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{request.base_url}/v1", "apiKey": request.key},
            "models": {request.model: {"limit": limit}},
        }
        return {
            "autoupdate": False,
            "share": "disabled",
            "permission": "allow",
            "agent": {"title": {"disable": not settings.title}},
            "provider": {"polar": provider},
        }
