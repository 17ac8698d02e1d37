"""Harness presets: how to find, start and read agent programs, found by name."""

from __future__ import annotations

from collections.abc import Callable

from polar.harnesses.base import Harness
from polar.plugins import Family

__all__ = ["load", "names"]

_FAMILY: Family[Callable[..., Harness]] = Family(
    "harness",
    "polar.harnesses",
    {
        "aider": "polar.harnesses.aider:Aider",
        "claude_agent_sdk": "polar.harnesses.claude_agent_sdk:ClaudeAgentSdk",
        "claude_code": "polar.harnesses.claude_code:ClaudeCode",
        "codex": "polar.harnesses.codex:Codex",
        "gemini_cli": "polar.harnesses.gemini_cli:GeminiCli",
        "mini_swe_agent": "polar.harnesses.mini_swe_agent:MiniSweAgent",
        "openai_agents": "polar.harnesses.openai_agents:OpenAiAgents",
        "opencode": "polar.harnesses.opencode:OpenCode",
        "pi": "polar.harnesses.pi:Pi",
        "qwen_code": "polar.harnesses.qwen_code:QwenCode",
        "shell": "polar.harnesses.shell:Shell",
    },
)


def names() -> tuple[str, ...]:
    """Name all presets: Polar's own first, then those of installed plug-ins."""
    return _FAMILY.names()


def load(name: str) -> Callable[..., Harness]:
    """Load the class of a preset by its name; it is called with its settings.

    Raises:
        ConfigError: There is none of that name.
    """
    return _FAMILY.load(name)
