"""Qwen Code: a Node program that speaks OpenAI Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from polar.harnesses.attending import approval_mode, first_prompt, typed
from polar.harnesses.base import Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.extensions import json_servers, with_skills
from polar.harnesses.npm import NodeHarness, NpmProgram
from polar.harnesses.openings import asks_after_a_reply, system_prompt
from polar.harnesses.settings import QwenCodeSettings
from polar.runtimes.base import ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "QwenCode"]

VERSION = "0.24.4"

_FOLDER = ".qwen"
_SKILLS = f"{_FOLDER}/skills"
_HIDES = ("OPENAI_", "QWEN_", "DASHSCOPE_")
_MEMORY = "You are now acting as the managed memory extraction subagent"
_SUBAGENT = """
Important Rules:
 - You operate in non-interactive mode: do not ask the user questions;"""
"""What it writes after the prompt of every kind of sub-agent."""
_COMPACTION = "You are the component that summarizes a conversation"


class QwenCode(NodeHarness[QwenCodeSettings]):
    """Starts `qwen`, told by flags, variables and its settings file.

    Usage statistics, updates and (unless it is asked for) the memory sub-agent are off.

    Args:
        settings: How it behaves.
    """

    name = "qwen_code"
    program = NpmProgram("qwen_code", "@qwen-code/qwen-code", VERSION, "qwen", least_node="20")
    agent_tool = ("agent", "prompt")
    whole_calls = True

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session. The instruction goes in by stdin: it may begin with `-`."""
        settings = self._settings
        argv = (
            *(*self._start(request), *approval_mode(request, edits="auto-edit")),
            *("--auth-type", "openai", "--model", request.model),
            *(("--bare",) if settings.bare else ()),
            *settings.extra_args,
            *first_prompt(request, "--prompt-interactive"),
        )
        env = {
            "QWEN_HOME": f"{request.place.home}/{_FOLDER}",
            "OPENAI_BASE_URL": f"{request.base_url}/v1",
            "OPENAI_API_KEY": request.key,
            "OPENAI_MODEL": request.model,
        }
        files = {f"{_FOLDER}/settings.json": json.dumps(self._own_settings())}
        argv = with_skills(argv, settings, folder=f"{request.place.home}/{_SKILLS}")
        return Launch(ProcessSpec(argv, env, stdin=typed(request)), files, _HIDES)

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the shell tool for each command, and say at last that it is done."""
        return tool_turns(
            "run_shell_command",
            commands,
            lambda command: {"command": command, "is_background": False},
        )

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, sub-agents, memories, compactions, side and foreign calls apart."""
        if "x-stainless-lang" not in headers:
            return "foreign"
        prompt = system_prompt(chat)
        if prompt.startswith(_COMPACTION) or asks_after_a_reply(chat, _COMPACTION):
            return "compaction"
        if prompt.startswith(_MEMORY) or not chat.tools:
            return "auxiliary"
        return "subagent" if _SUBAGENT in prompt else "main"

    def _own_settings(self) -> dict[str, object]:
        servers = json_servers(self._settings)
        return {
            # Without the flag it has the model search for their tools first.
            "mcpServers": {
                name: {**server, "alwaysLoadTools": True} for name, server in servers.items()
            },
            "privacy": {"usageStatisticsEnabled": False},
            "memory": {"enableManagedAutoMemory": self._settings.memory},
            "general": {"enableAutoUpdate": False},
            "model": {"generationConfig": {"contextWindowSize": self._settings.context_window}},
        }
