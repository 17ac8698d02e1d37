"""Claude Code: a native program that speaks Anthropic Messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from polar.harnesses.base import Installation, Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.npm import NpmProgram
from polar.harnesses.settings import ClaudeCodeSettings
from polar.runtimes.base import ExecResult, ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "ClaudeCode"]

VERSION = "2.1.332"

_PROGRAM = NpmProgram(
    "claude_code",
    "@anthropic-ai/claude-code",
    VERSION,
    "claude",
    native="@anthropic-ai/claude-code-linux-*/claude",
)
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
_COMPACTION = "CRITICAL: Respond with TEXT ONLY"
_BROKEN = (126, 127)


class ClaudeCode:
    """Starts `claude --print`, told by flags and variables.

    Telemetry, experimental request fields, prompt caching marks and deferred tools are off, so
    that a turn's request begins with the bytes of the one before.

    Args:
        settings: How it behaves.
    """

    name = "claude_code"

    def __init__(self, settings: ClaudeCodeSettings | None = None) -> None:
        self._settings = settings or ClaudeCodeSettings()

    def find(self) -> Installation:
        """Look for `claude`: the setting, Polar's own installation, then PATH.

        Raises:
            HarnessMissing: It is nowhere.
        """
        return self._installation

    def install_command(self) -> tuple[tuple[str, ...], ...]:
        """Install the pinned version into a folder of its own."""
        return _PROGRAM.install_command(self._settings.cache)

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session. The instruction goes in by stdin: it may begin with `-`."""
        settings = self._settings
        argv = (
            *(str(self._installation.executable), "--print", "--model", request.model),
            *("--dangerously-skip-permissions", "--output-format", "json"),
            *(("--tools", ",".join(settings.tools)) if settings.tools else ()),
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

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the Bash tool for each command, and say at last that it is done."""
        return tool_turns("Bash", commands, lambda command: {"command": command})

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, sub-agents, side calls, compactions and foreign calls apart."""
        if "x-claude-code-session-id" not in headers:
            return "foreign"
        if "x-claude-code-agent-id" in headers:
            return "subagent"
        if chat.messages and _COMPACTION in chat.messages[-1].content:
            return "compaction"
        return "main" if chat.tools else "auxiliary"

    def ended_well(self, result: ExecResult) -> bool:
        """Tell an agent that ended from a program that was not there.

        It exits with 1 both when the model's service failed and when a flag is wrong.
        """
        return result.exit_code not in _BROKEN

    @cached_property
    def _installation(self) -> Installation:
        return _PROGRAM.find(self._settings.executable, self._settings.cache)
