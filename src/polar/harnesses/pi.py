"""The Pi coding agent: a Node program with a bash tool and its own conversation loop."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from polar.errors import HarnessMissing
from polar.harnesses.base import Installation, Launch, LaunchRequest
from polar.harnesses.installing import own_folder
from polar.harnesses.settings import PiSettings
from polar.runtimes.base import ExecResult, ProcessSpec
from polar.types import CallKind, Chat, Message, ToolCall

__all__ = ["VERSION", "Pi"]

VERSION = "0.73.1"
"""The last one that runs on Node 20."""

_PACKAGE = "@mariozechner/pi-coding-agent"
_FOLDER = ".pi/agent"
_PROVIDER = "polar"
_SUMMARY_PROMPT = "You are a context summarization assistant"
_BROKEN = (1, 2, 126, 127)


class Pi:
    """Starts `pi`, told by documented flags, variables and config files.

    Args:
        settings: How it behaves.
    """

    name = "pi"

    def __init__(self, settings: PiSettings | None = None) -> None:
        self._settings = settings or PiSettings()

    def find(self) -> Installation:
        """Look for `pi` (the setting, Polar's own installation, then PATH) and for Node.

        Raises:
            HarnessMissing: One of them is nowhere.
        """
        return self._installation

    def install_command(self) -> tuple[tuple[str, ...], ...]:
        """Install the pinned version into a folder of its own."""
        return (
            (
                *("npm", "install", "--prefix", str(self._folder), "--no-audit", "--no-fund"),
                *("--loglevel=error", f"{_PACKAGE}@{VERSION}"),
            ),
        )

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session. The instruction goes in by stdin: it may begin with `-`."""
        settings = self._settings
        folder = f"{request.place.home}/{_FOLDER}"
        prompt = settings.system_prompt
        argv = (
            *(str(self._node), str(self._installation.executable)),
            *("--print", "--provider", _PROVIDER, "--model", request.model),
            *("--tools", ",".join(settings.tools)),
            *(() if prompt is None else ("--system-prompt", prompt)),
            *("--no-session", "--no-extensions", "--no-skills", "--no-prompt-templates"),
            *("--no-themes", "--no-context-files", "--thinking", "off", "--offline"),
        )
        env = {"PI_CODING_AGENT_DIR": folder, "PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
        files = {
            f"{_FOLDER}/models.json": json.dumps(self._models(request)),
            f"{_FOLDER}/settings.json": json.dumps(self._own_settings()),
        }
        return Launch(ProcessSpec(argv, env, stdin=request.instruction), files)

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the bash tool for each command, and say at last that it is done."""
        calls = (
            ToolCall(f"expert{index}", "bash", json.dumps({"command": command}))
            for index, command in enumerate(commands)
        )
        turns = (Message("assistant", "", tool_calls=(call,)) for call in calls)
        return (*turns, Message("assistant", "Done."))

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, compactions, and calls of the agent's own commands apart."""
        if "x-stainless-lang" not in {name.lower() for name in headers}:
            return "foreign"
        first = chat.messages[0].content if chat.messages else ""
        return "compaction" if first.startswith(_SUMMARY_PROMPT) else "main"

    def ended_well(self, result: ExecResult) -> bool:
        """Tell an agent that ended from a program that broke (an exception, a wrong flag)."""
        return result.exit_code not in _BROKEN

    @property
    def _folder(self) -> Path:
        return own_folder(self._settings.cache, f"pi-{VERSION}")

    @cached_property
    def _installation(self) -> Installation:
        program = self._program().resolve()
        package = next(
            (above for above in program.parents if (above / "package.json").is_file()),
            program.parent,
        )
        root = next(
            (above.parent for above in program.parents if above.name == "node_modules"), package
        )
        node = self._node.resolve()
        folders = (root, node.parent.parent if node.parent.name == "bin" else node.parent)
        return Installation(program, version=_version(package), read_only=folders)

    @cached_property
    def _node(self) -> Path:
        chosen = self._settings.node
        found = shutil.which("node") if chosen is None else str(chosen.expanduser().absolute())
        if found is None or not Path(found).is_file():
            raise HarnessMissing(
                "Pi needs Node 20.6 or newer", where=found, fix="Install it from nodejs.org."
            )
        return Path(found)

    def _program(self) -> Path:
        if self._settings.executable is not None:
            program = self._settings.executable.expanduser().absolute()
            if program.is_file():
                return program
            raise HarnessMissing(
                "Pi is not where the settings say",
                where=str(program),
                fix="Correct `executable`, or leave it out.",
            )
        own = self._folder / "node_modules" / ".bin" / "pi"
        if own.is_file():
            return own
        if (found := shutil.which("pi")) is not None:
            return Path(found)
        raise HarnessMissing(
            f"Pi {VERSION} is not installed",
            where=str(self._folder),
            fix=f"Run `polar install {self.name}`.",
        )

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


def _version(package: Path) -> str:
    described = json.loads((package / "package.json").read_text(encoding="utf-8"))
    return str(described["version"])
