"""Codex CLI: a native program that speaks OpenAI Responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property

from polar.harnesses.base import Installation, Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.npm import NpmProgram
from polar.harnesses.settings import CodexSettings
from polar.runtimes.base import ExecResult, ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "Codex"]

VERSION = "0.171.0"

_PROGRAM = NpmProgram(
    "codex", "@openai/codex", VERSION, "codex", native="@openai/codex*/**/bin/codex"
)
_CONFIG = ".codex/config.toml"
_KEY = "POLAR_SESSION_KEY"
_COMPACTION = "CONTEXT CHECKPOINT COMPACTION"
_BROKEN = (2, 126, 127)


class Codex:
    """Starts `codex exec`, told by its config file.

    Sandboxing and approvals are off: the runtime is the sandbox. Multi-agent tools, plugins, apps
    and web search are off too, so that nothing is looked up outside.

    Args:
        settings: How it behaves.
    """

    name = "codex"

    def __init__(self, settings: CodexSettings | None = None) -> None:
        self._settings = settings or CodexSettings()

    def find(self) -> Installation:
        """Look for `codex`: the setting, Polar's own installation, then PATH.

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
            *(str(self._installation.executable), "exec", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", "--color", "never"),
            *self._settings.extra_args,
            "-",
        )
        process = ProcessSpec(argv, {_KEY: request.key}, stdin=request.instruction)
        return Launch(process, {_CONFIG: self._config(request)})

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the command tool for each command, and say at last that it is done."""
        return tool_turns("exec_command", commands, lambda command: {"cmd": command})

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, sub-agents, compactions, and the agent's own commands' calls apart."""
        if "session-id" not in headers:
            return "foreign"
        if headers.get("x-openai-subagent") == "compact":
            return "compaction"
        if chat.messages and _COMPACTION in chat.messages[-1].content:
            return "compaction"
        return "subagent" if "x-openai-subagent" in headers else "main"

    def ended_well(self, result: ExecResult) -> bool:
        """Tell an agent that ended from a program that broke (a wrong flag, a broken config)."""
        return result.exit_code not in _BROKEN

    @cached_property
    def _installation(self) -> Installation:
        return _PROGRAM.find(self._settings.executable, self._settings.cache)

    def _config(self, request: LaunchRequest) -> str:
        """Write the config file; JSON's strings are TOML's basic strings."""
        settings = self._settings
        return f"""\
model = {json.dumps(request.model)}
model_provider = "polar"
model_context_window = {settings.context_window}
web_search = "disabled"
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
plugins = false
apps = false
multi_agent = false
goals = false

[model_providers.polar]
name = "polar"
base_url = {json.dumps(f"{request.base_url}/v1")}
env_key = {json.dumps(_KEY)}
wire_api = "responses"
request_max_retries = {settings.retries}
stream_max_retries = {settings.retries}
"""
