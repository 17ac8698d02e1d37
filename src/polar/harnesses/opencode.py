"""OpenCode: a native program that speaks OpenAI Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from polar.harnesses.attending import first_prompt, typed
from polar.harnesses.base import Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.extensions import with_skills
from polar.harnesses.npm import NpmHarness, NpmProgram
from polar.harnesses.openings import system_prompt
from polar.harnesses.settings import OpenCodeSettings
from polar.runtimes.base import ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "OpenCode"]

VERSION = "1.18.33"

_SKILLS = ".config/opencode/skills"
_TITLE = "You are a title generator"
_COMPACTION = "You are a context summarization agent"
_FOLDERS = (
    ("CONFIG", ".config"),
    ("DATA", ".local/share"),
    ("STATE", ".local/state"),
    ("CACHE", ".cache"),
)
"""It has no variable for its own folders, only these of all programs."""


class OpenCode(NpmHarness[OpenCodeSettings]):
    """Starts `opencode run`, told by variables.

    Updates, sharing, the models list and (unless it is asked for) session titles are off.

    Args:
        settings: How it behaves.
    """

    name = "opencode"
    agent_header = "x-session-affinity"
    program = NpmProgram(
        "opencode", "opencode-ai", VERSION, "opencode", native="opencode-linux-*/bin/opencode"
    )

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session. The instruction goes in by stdin: it may begin with `-`."""
        argv = (
            *(*self._start(request), *(() if request.interactive else ("run",))),
            *("--model", f"polar/{request.model}", *self._settings.extra_args),
            *first_prompt(request, "--prompt"),
        )
        folders = {f"XDG_{kind}_HOME": f"{request.place.home}/{path}" for kind, path in _FOLDERS}
        env = {
            **folders,
            "OPENCODE_CONFIG_CONTENT": json.dumps(self._config(request)),
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "npm_config_offline": "true",
        }
        argv = with_skills(argv, self._settings, folder=f"{request.place.home}/{_SKILLS}")
        return Launch(ProcessSpec(argv, env, stdin=typed(request)), hides=("OPENCODE_",))

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the bash tool for each command, and say at last that it is done."""
        return tool_turns(
            "bash",
            commands,
            lambda command: {"command": command, "description": "Work on the task"},
        )

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, sub-agents, titles, compactions and foreign calls apart."""
        if "x-session-affinity" not in headers:
            return "foreign"
        prompt = system_prompt(chat)
        if prompt.startswith(_COMPACTION):
            return "compaction"
        if prompt.startswith(_TITLE):
            return "auxiliary"
        return "subagent" if "x-parent-session-id" in headers else "main"

    def _config(self, request: LaunchRequest) -> dict[str, object]:
        settings = self._settings
        limit = {"context": settings.context_window, "output": settings.max_tokens}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{request.base_url}/v1", "apiKey": request.key},
            "models": {request.model: {"limit": limit}},
        }
        servers = {
            name: {
                "type": "local",
                "command": [server.command, *server.args],
                "environment": server.env,
            }
            for name, server in settings.mcp_servers.items()
        }
        return {
            "mcp": servers,
            "autoupdate": False,
            "share": "disabled",
            **({} if request.asks else {"permission": "allow"}),
            "agent": {"title": {"disable": not settings.title}},
            "provider": {"polar": provider},
        }
