"""OpenCode: a native program that speaks OpenAI Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from polar.harnesses.base import Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.npm import NpmHarness, NpmProgram
from polar.harnesses.settings import OpenCodeSettings
from polar.runtimes.base import ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "OpenCode"]

VERSION = "1.18.33"

_TITLE = "You are a title generator"
_COMPACTION = "context summarization agent"


class OpenCode(NpmHarness[OpenCodeSettings]):
    """Starts `opencode run`, told by variables.

    Updates, sharing, the models list and (unless it is asked for) session titles are off.

    Args:
        settings: How it behaves.
    """

    name = "opencode"
    program = NpmProgram(
        "opencode", "opencode-ai", VERSION, "opencode", native="opencode-linux-*/bin/opencode"
    )

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session. The instruction goes in by stdin: it may begin with `-`."""
        argv = (
            *(*self._start(), "run", "--model", f"polar/{request.model}"),
            *self._settings.extra_args,
        )
        env = {
            "OPENCODE_CONFIG_CONTENT": json.dumps(self._config(request)),
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "npm_config_offline": "true",
        }
        return Launch(ProcessSpec(argv, env, stdin=request.instruction))

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the bash tool for each command, and say at last that it is done."""
        return tool_turns(
            "bash",
            commands,
            lambda command: {"command": command, "description": "Work on the task"},
        )

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, titles, compactions and foreign calls apart."""
        if "x-session-affinity" not in headers:
            return "foreign"
        first = chat.messages[0].content if chat.messages else ""
        if _COMPACTION in first:
            return "compaction"
        return "auxiliary" if first.startswith(_TITLE) else "main"

    def _config(self, request: LaunchRequest) -> dict[str, object]:
        settings = self._settings
        limit = {"context": settings.context_window, "output": settings.max_tokens}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{request.base_url}/v1", "apiKey": request.key},
            "models": {request.model: {"limit": limit}},
        }
        return {
            "autoupdate": False,
            "share": "disabled",
            "permission": "allow",
            "agent": {"title": {"disable": not settings.title}},
            "provider": {"polar": provider},
        }
