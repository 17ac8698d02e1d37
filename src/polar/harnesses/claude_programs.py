"""What presets that start Claude Code share: its variables, its tools and its kinds of calls."""

from __future__ import annotations

from collections.abc import Mapping

from polar.harnesses.base import LaunchRequest
from polar.harnesses.openings import asks_after_a_reply
from polar.harnesses.settings import ClaudeSettings
from polar.types import CallKind, Chat

__all__ = [
    "AGENT_HEADER",
    "FOLDER",
    "HIDES",
    "SKILLS",
    "kind_of_call",
    "offered_tools",
    "variables",
]

AGENT_HEADER = "x-claude-code-agent-id"
"""What sub-agents alone send."""
FOLDER = ".claude"
SKILLS = f"{FOLDER}/skills"
HIDES = ("ANTHROPIC_", "CLAUDE_", "CLAUDECODE")

_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_DISABLE_THINKING": "1",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "DISABLE_PROMPT_CACHING": "1",
    "ENABLE_TOOL_SEARCH": "false",
}
_AGENT = "Agent"
_SKILL = "Skill"
_COMPACTION = "CRITICAL: Respond with TEXT ONLY"


def variables(request: LaunchRequest, settings: ClaudeSettings) -> dict[str, str]:
    """Give address, key and limits, and switch off what makes one turn's request unlike the next.

    Args:
        request: The session.
        settings: How it behaves.
    """
    return {
        **_QUIET,
        # It refuses to work without asking as root unless it is told that it is confined.
        **({} if request.asks else {"IS_SANDBOX": "1"}),
        "CLAUDE_CONFIG_DIR": f"{request.place.home}/{FOLDER}",
        "ANTHROPIC_BASE_URL": request.base_url,
        "ANTHROPIC_API_KEY": request.key,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(settings.context_window),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(settings.max_tokens),
        "CLAUDE_CODE_MAX_RETRIES": str(settings.retries),
    }


def offered_tools(settings: ClaudeSettings) -> tuple[str, ...]:
    """List the tools, with those without which sub-agents and skills are not to be had.

    Returns:
        Names of tools; empty where all are offered.
    """
    if not settings.tools:
        return ()
    more = [_AGENT] * settings.subagents + [_SKILL] * bool(settings.skills)
    return (*settings.tools, *(tool for tool in more if tool not in settings.tools))


def kind_of_call(chat: Chat, headers: Mapping[str, str]) -> CallKind:
    """Tell main calls, sub-agents, side calls, compactions and foreign calls apart."""
    if "x-claude-code-session-id" not in headers:
        return "foreign"
    if asks_after_a_reply(chat, _COMPACTION):
        return "compaction"  # a sub-agent's too: what it samples is no step of its work
    if AGENT_HEADER in headers:
        return "subagent"
    return "main" if chat.tools else "auxiliary"
