"""Codex CLI: a native program that speaks OpenAI Responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from polar.harnesses.attending import typed
from polar.harnesses.base import Launch, LaunchRequest
from polar.harnesses.expert import tool_turns
from polar.harnesses.extensions import with_skills
from polar.harnesses.npm import NpmHarness, NpmProgram
from polar.harnesses.settings import CodexSettings, McpServer
from polar.runtimes.base import ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "Codex"]

VERSION = "0.171.0"

_FOLDER = ".codex"
_SKILLS = f"{_FOLDER}/skills"
_BYPASS = "--dangerously-bypass-approvals-and-sandbox"
_HIDES = ("CODEX_", "OPENAI_")
_KEY = "POLAR_SESSION_KEY"
_TURN_METADATA = "x-codex-turn-metadata"


class Codex(NpmHarness[CodexSettings]):
    """Starts `codex exec`, told by its config file.

    Sandboxing and approvals are off: the runtime is the sandbox. Plugins, apps and web search are
    off too, so that nothing is looked up outside, and (unless they are asked for) sub-agents.

    Args:
        settings: How it behaves.
    """

    name = "codex"
    agent_header = "thread-id"
    program = NpmProgram(
        "codex", "@openai/codex", VERSION, "codex", native="@openai/codex*/**/bin/codex"
    )
    broken = (2, 126, 127)

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session. The instruction goes in by stdin: it may begin with `-`."""
        env = {_KEY: request.key, "CODEX_HOME": f"{request.place.home}/{_FOLDER}"}
        argv = (*self._start(request), *self._words(request))
        argv = with_skills(argv, self._settings, folder=f"{request.place.home}/{_SKILLS}")
        files = {f"{_FOLDER}/config.toml": self._config(request)}
        return Launch(ProcessSpec(argv, env, stdin=typed(request)), files, _HIDES)

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Call the command tool for each command, and say at last that it is done."""
        return tool_turns("exec_command", commands, lambda command: {"cmd": command})

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, sub-agents, compactions, and the agent's own commands' calls apart."""
        if "session-id" not in headers:
            return "foreign"
        if _request_kind(headers) == "compaction":
            return "compaction"  # a sub-agent's too: what it samples is no step of its work
        return "subagent" if "x-openai-subagent" in headers else "main"

    def _words(self, request: LaunchRequest) -> tuple[str, ...]:
        """Say what follows the program's name."""
        more = self._settings.extra_args
        if request.interactive:
            first = () if request.instruction is None else ("--", request.instruction)
            return (*(() if request.asks else (_BYPASS,)), *more, *first)
        free = ("--sandbox", "workspace-write") if request.asks else (_BYPASS,)
        return ("exec", "--skip-git-repo-check", "--color", "never", *free, *more, "-")

    def _config(self, request: LaunchRequest) -> str:
        """Write the config file; JSON's strings are TOML's basic strings."""
        settings = self._settings
        servers = "".join(_server(name, one) for name, one in settings.mcp_servers.items())
        return f"""\
model = {json.dumps(request.model)}
model_provider = "polar"
model_context_window = {settings.context_window}
web_search = "disabled"
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
plugins = false
apps = false
goals = false

[agents]
enabled = {json.dumps(settings.subagents)}

[model_providers.polar]
name = "polar"
base_url = {json.dumps(f"{request.base_url}/v1")}
env_key = {json.dumps(_KEY)}
wire_api = "responses"
request_max_retries = {settings.retries}
stream_max_retries = {settings.retries}
{servers}"""


def _request_kind(headers: Mapping[str, str]) -> str | None:
    """Read what a request says that it is for."""
    try:
        told = json.loads(headers.get(_TURN_METADATA, "{}"))
    except ValueError:
        return None
    kind = told.get("request_kind") if isinstance(told, dict) else None
    return kind if isinstance(kind, str) else None


def _server(name: str, server: McpServer) -> str:
    env = ", ".join(f"{_toml(key)} = {_toml(value)}" for key, value in server.env.items())
    return f"""
[mcp_servers.{name}]
command = {_toml(server.command)}
args = [{", ".join(map(_toml, server.args))}]
env = {{ {env} }}
"""


def _toml(text: str) -> str:
    """Write a basic string of TOML, which is one of JSON that spells out no surrogates."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
