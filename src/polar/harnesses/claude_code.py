"""Claude Code: a native program that speaks Anthropic Messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from polar.harnesses.attending import typed
from polar.harnesses.base import Launch, LaunchRequest
from polar.harnesses.claude_programs import (
    AGENT_HEADER,
    FOLDER,
    HIDES,
    SKILLS,
    kind_of_call,
    offered_tools,
    variables,
)
from polar.harnesses.expert import tool_turns
from polar.harnesses.extensions import json_servers, with_skills
from polar.harnesses.npm import NpmHarness, NpmProgram
from polar.harnesses.settings import ClaudeCodeSettings
from polar.runtimes.base import ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "ClaudeCode"]

VERSION = "2.1.332"

_SERVERS = f"{FOLDER}/mcp-servers.json"
_KEY_TAIL = 20
"""So much of a key it keeps to know it again."""


class ClaudeCode(NpmHarness[ClaudeCodeSettings]):
    """Starts `claude --print`, told by flags and variables.

    Telemetry, experimental request fields, prompt caching marks and deferred tools are off, so
    that a turn's request begins with the bytes of the one before.

    Args:
        settings: How it behaves.
    """

    name = "claude_code"
    agent_header = AGENT_HEADER
    program = NpmProgram(
        "claude_code",
        "@anthropic-ai/claude-code",
        VERSION,
        "claude",
        native="@anthropic-ai/claude-code-linux-*/claude",
    )

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session. The instruction goes in by stdin: it may begin with `-`."""
        settings = self._settings
        argv = (
            *(*self._start(request), "--model", request.model),
            *(() if request.interactive else ("--print",)),
            *_approvals(request),
            *(("--tools", ",".join(tools)) if (tools := offered_tools(settings)) else ()),
            *(("--bare",) if settings.bare else ()),
            *(self._servers_flags(request) if settings.mcp_servers else ()),
            *settings.extra_args,
        )
        first = ("--", request.instruction) if request.interactive and request.instruction else ()
        argv = with_skills((*argv, *first), settings, folder=f"{request.place.home}/{SKILLS}")
        process = ProcessSpec(argv, variables(request, settings), stdin=typed(request))
        return Launch(process, self._files(request), HIDES)

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the Bash tool for each command, and say at last that it is done."""
        return tool_turns("Bash", commands, lambda command: {"command": command})

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, sub-agents, side calls, compactions and foreign calls apart."""
        return kind_of_call(chat, headers)

    def _files(self, request: LaunchRequest) -> dict[str, str]:
        files = {}
        if self._settings.mcp_servers:
            files[_SERVERS] = json.dumps({"mcpServers": json_servers(self._settings)})
        if request.interactive:
            files[f"{FOLDER}/.claude.json"] = json.dumps(_met(request.key))
        return files

    def _servers_flags(self, request: LaunchRequest) -> tuple[str, ...]:
        return ("--mcp-config", f"{request.place.home}/{_SERVERS}", "--strict-mcp-config")


def _approvals(request: LaunchRequest) -> tuple[str, ...]:
    """Say whom it asks: nobody, somebody at the terminal, or nobody but it only edits files."""
    if not request.asks:
        return ("--dangerously-skip-permissions",)
    return () if request.interactive else ("--permission-mode", "acceptEdits")


def _met(key: str) -> dict[str, object]:
    """Skip its welcome, and its question whether to use the key."""
    approved = {"approved": [key[-_KEY_TAIL:]], "rejected": []}
    return {"hasCompletedOnboarding": True, "customApiKeyResponses": approved}
