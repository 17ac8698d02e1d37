"""Agents on the OpenAI Agents SDK, which speaks OpenAI Responses or Chat Completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polar.harnesses.base import Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.pip import PYTHON, PipProgram
from polar.harnesses.scripts import ScriptHarness
from polar.harnesses.settings import OpenAiAgentsSettings
from polar.runtimes.base import ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "OpenAiAgents"]

VERSION = "0.24.0"


class OpenAiAgents(ScriptHarness[OpenAiAgentsSettings]):
    """Starts an agent of the user's or the example, which has one tool: a shell. Tracing is off.

    Args:
        settings: How it behaves.
    """

    name = "openai_agents"
    program = PipProgram("openai_agents", "openai-agents", VERSION, PYTHON)
    example = "openai_agent.py"

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session."""
        settings = self._settings
        env = {
            **self._env(request),
            "OPENAI_BASE_URL": f"{request.base_url}/v1",
            "OPENAI_API_KEY": request.key,
            "OPENAI_DEFAULT_MODEL": request.model,
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }
        more = {
            "api": settings.api,
            "max_tokens": settings.max_tokens,
            "command_timeout_s": settings.command_timeout_s,
        }
        process = ProcessSpec(self._words(request), env)
        return Launch(process, self._files(request, more), ("OPENAI_",))

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the example's tool for each command, and say at last that it is done."""
        if self._settings.script is not None:
            return ()
        return tool_turns("run_command", commands, lambda command: {"command": command})

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell the SDK's calls, all of which are main ones, from those of the agent's commands."""
        return "main" if "x-stainless-lang" in headers else "foreign"
