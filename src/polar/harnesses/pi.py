"""The Pi coding agent: a Node program with a bash tool and its own conversation loop."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from polar.harnesses.attending import typed
from polar.harnesses.base import Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.npm import NodeHarness, NpmProgram
from polar.harnesses.openings import system_prompt
from polar.harnesses.settings import PiSettings
from polar.runtimes.base import ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "Pi"]

VERSION = "0.73.1"
"""The last one that runs on Node 20."""

_FOLDER = ".pi/agent"
_PROVIDER = "polar"
_NO_FILES = (
    *("--no-extensions", "--no-skills", "--no-prompt-templates"),
    *("--no-themes", "--no-context-files"),
)
_SUMMARY_PROMPT = "You are a context summarization assistant"


class Pi(NodeHarness[PiSettings]):
    """Starts `pi`, told by documented flags, variables and config files.

    Args:
        settings: How it behaves.
    """

    name = "pi"
    program = NpmProgram(
        "pi", "@mariozechner/pi-coding-agent", VERSION, "pi", node="22.23.3", least_node="20.6"
    )
    broken = (1, 2, 126, 127)
    whole_calls = True

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session. The instruction goes in by stdin: it may begin with `-`."""
        settings = self._settings
        folder = f"{request.place.home}/{_FOLDER}"
        prompt = settings.system_prompt
        argv = (
            *self._start(request),
            *(() if request.interactive else ("--print", "--no-session")),
            *("--provider", _PROVIDER, "--model", request.model),
            *("--tools", ",".join(settings.tools)),
            *(() if prompt is None else ("--system-prompt", prompt)),
            *(() if settings.own_files else _NO_FILES),
            *("--thinking", "off", "--offline", *settings.extra_args),
            *_first(request),
        )
        env = {"PI_CODING_AGENT_DIR": folder, "PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
        files = {
            f"{_FOLDER}/models.json": json.dumps(self._models(request)),
            f"{_FOLDER}/settings.json": json.dumps(self._own_settings()),
        }
        return Launch(ProcessSpec(argv, env, stdin=typed(request)), files, ("PI_",))

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the bash tool for each command, and say at last that it is done."""
        return tool_turns("bash", commands, lambda command: {"command": command})

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, compactions, and calls of the agent's own commands apart."""
        if "x-stainless-lang" not in {name.lower() for name in headers}:
            return "foreign"
        return "compaction" if system_prompt(chat).startswith(_SUMMARY_PROMPT) else "main"

    def _models(self, request: LaunchRequest) -> dict[str, object]:
        settings = self._settings
        model = {
            "id": request.model,
            "contextWindow": settings.context_window,
            "maxTokens": settings.max_tokens,
            "reasoning": False,
            "input": ["text"],
        }
        provider = {
            "baseUrl": f"{request.base_url}/v1",
            "api": "openai-completions",
            "apiKey": request.key,
            "compat": {"supportsStore": False, "supportsDeveloperRole": False},
            "models": [model],
        }
        return {"providers": {_PROVIDER: provider}}

    def _own_settings(self) -> dict[str, object]:
        settings = self._settings
        return {
            "retry": {
                "enabled": settings.model_retries > 0,
                "maxRetries": settings.model_retries,
                "provider": {"maxRetries": 0},
            },
            # Its own reserve of 16384 tokens would make it compact a small window at every turn.
            "compaction": {
                "enabled": settings.compaction,
                "reserveTokens": settings.max_tokens,
                "keepRecentTokens": settings.context_window // 2,
            },
        }


def _first(request: LaunchRequest) -> tuple[str, ...]:
    """Give the task to its screen; a blank keeps `-` and `@` from being read as flag and file."""
    if not request.interactive or request.instruction is None:
        return ()
    task = request.instruction
    return (f" {task}" if task.startswith(("-", "@")) else task,)
