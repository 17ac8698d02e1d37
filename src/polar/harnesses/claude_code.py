"""Claude Code: a native program that speaks Anthropic Messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polar.harnesses.base import Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.npm import NpmHarness, NpmProgram
from polar.harnesses.openings import asks_after_a_reply
from polar.harnesses.settings import ClaudeCodeSettings
from polar.runtimes.base import ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "ClaudeCode"]

VERSION = "2.1.332"

_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_DISABLE_THINKING": "1",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "DISABLE_PROMPT_CACHING": "1",
    "ENABLE_TOOL_SEARCH": "false",
    # It refuses to work without asking as root unless it is told that it is confined.
    "IS_SANDBOX": "1",
}
_AGENT = "Agent"
_COMPACTION = "CRITICAL: Respond with TEXT ONLY"


class ClaudeCode(NpmHarness[ClaudeCodeSettings]):
    """Starts `claude --print`, told by flags and variables.

    Telemetry, experimental request fields, prompt caching marks and deferred tools are off, so
    that a turn's request begins with the bytes of the one before.

    Args:
        settings: How it behaves.
    """

    name = "claude_code"
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
            *(*self._start(), "--print", "--model", request.model),
            *("--dangerously-skip-permissions", "--output-format", "json"),
            *(("--tools", ",".join(self._tools())) if settings.tools else ()),
            *(("--bare",) if settings.bare else ()),
            *settings.extra_args,
        )
        env = {
            **_QUIET,
            "ANTHROPIC_BASE_URL": request.base_url,
            "ANTHROPIC_API_KEY": request.key,
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(settings.context_window),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(settings.max_tokens),
            "CLAUDE_CODE_MAX_RETRIES": str(settings.retries),
        }
        return Launch(ProcessSpec(argv, env, stdin=request.instruction))

    def _tools(self) -> tuple[str, ...]:
        tools = self._settings.tools
        return (*tools, _AGENT) if self._settings.subagents and _AGENT not in tools else tools

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the Bash tool for each command, and say at last that it is done."""
        return tool_turns("Bash", commands, lambda command: {"command": command})

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, sub-agents, side calls, compactions and foreign calls apart."""
        if "x-claude-code-session-id" not in headers:
            return "foreign"
        if asks_after_a_reply(chat, _COMPACTION):
            return "compaction"  # a sub-agent's too: what it samples is no step of its work
        if "x-claude-code-agent-id" in headers:
            return "subagent"
        return "main" if chat.tools else "auxiliary"
