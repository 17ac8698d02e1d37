"""Gemini CLI: a Node program that speaks Google's generateContent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from polar.harnesses.attending import approval_mode, first_prompt, typed
from polar.harnesses.base import Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.extensions import json_servers, with_skills
from polar.harnesses.npm import NodeHarness, NpmProgram
from polar.harnesses.openings import system_prompt
from polar.harnesses.settings import GeminiCliSettings
from polar.runtimes.base import ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "GeminiCli"]

VERSION = "0.61.0"

_SETTINGS = ".gemini/settings.json"
_SKILLS = ".gemini/skills"
_HIDES = ("GEMINI_", "GOOGLE_")
_HALF_FULL_AT = 2 * 1_048_576
"""It believes every model to hold 1,048,576 tokens and can only be told at which share of them to
summarise; its own share is a half."""
_COMPACTION = "You are a specialized system component responsible for distilling chat history"
_SUBAGENT_END = "complete_task"
"""The tool by which a sub-agent ends; only sub-agents have it."""


class GeminiCli(NodeHarness[GeminiCliSettings]):
    """Starts `gemini`, told by flags, variables and its settings file.

    The model is named outright: with `auto` it asks a model which model to use.

    Args:
        settings: How it behaves.
    """

    name = "gemini_cli"
    program = NpmProgram("gemini_cli", "@google/gemini-cli", VERSION, "gemini", least_node="20")
    agent_tool = ("invoke_agent", "prompt")
    broken = (41, 42, 52, 55, 126, 127)
    """Its own codes for authentication, input, configuration and trust; and not started."""

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session. The instruction goes in by stdin: it may begin with `-`."""
        settings = self._settings
        asked = request.asks and request.interactive
        argv = (
            *(*self._start(request), *approval_mode(request, edits="auto_edit")),
            *(() if asked else ("--skip-trust",)),
            *("--model", request.model, *settings.extra_args),
            *first_prompt(request, "--prompt-interactive"),
        )
        env = {
            "GEMINI_CLI_HOME": request.place.home,
            "GOOGLE_GEMINI_BASE_URL": request.base_url,
            "GEMINI_API_KEY": request.key,
        }
        own = {
            "mcpServers": json_servers(settings),
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False},
            "model": {"compressionThreshold": min(1, settings.context_window / _HALF_FULL_AT)},
        }
        files = {_SETTINGS: json.dumps(own)}
        argv = with_skills(argv, settings, folder=f"{request.place.home}/{_SKILLS}")
        return Launch(ProcessSpec(argv, env, stdin=typed(request)), files, _HIDES)

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the shell tool for each command, and say at last that it is done."""
        return tool_turns("run_shell_command", commands, lambda command: {"command": command})

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, sub-agents, compactions, side calls and foreign calls apart."""
        if not headers.get("user-agent", "").startswith("GeminiCLI"):
            return "foreign"
        if system_prompt(chat).startswith(_COMPACTION):
            return "compaction"
        if any(tool.name == _SUBAGENT_END for tool in chat.tools):
            return "subagent"
        return "main" if chat.tools else "auxiliary"
