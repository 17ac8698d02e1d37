"""Agents on the Claude Agent SDK, which drives the Claude Code that it brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polar.harnesses.base import Launch, LaunchRequest
from polar.harnesses.claude_programs import (
    AGENT_HEADER,
    HIDES,
    SKILLS,
    kind_of_call,
    offered_tools,
    variables,
)
from polar.harnesses.expert import tool_turns
from polar.harnesses.extensions import with_skills
from polar.harnesses.pip import PYTHON, PipProgram
from polar.harnesses.scripts import ScriptHarness
from polar.harnesses.settings import ClaudeAgentSdkSettings
from polar.runtimes.base import ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "ClaudeAgentSdk"]

VERSION = "0.2.189"
"""Brings Claude Code 2.1.332."""


class ClaudeAgentSdk(ScriptHarness[ClaudeAgentSdkSettings]):
    """Starts an agent of the user's or the example, whose tools are those of Claude Code.

    Off is what `claude_code` switches off.

    Args:
        settings: How it behaves.
    """

    name = "claude_agent_sdk"
    agent_header = AGENT_HEADER
    program = PipProgram("claude_agent_sdk", "claude-agent-sdk", VERSION, PYTHON)
    example = "claude_agent.py"

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session."""
        settings = self._settings
        argv = with_skills(self._words(request), settings, folder=f"{request.place.home}/{SKILLS}")
        env = {**self._env(request), **variables(request, settings)}
        more = {
            "tools": list(offered_tools(settings)) or None,
            "skills": bool(settings.skills),
        }
        return Launch(ProcessSpec(argv, env), self._files(request, more), HIDES)

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the Bash tool for each command, and say at last that it is done."""
        if self._settings.script is not None:
            return ()
        return tool_turns("Bash", commands, lambda command: {"command": command})

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, sub-agents, side calls, compactions and foreign calls apart."""
        return kind_of_call(chat, headers)
