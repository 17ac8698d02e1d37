"""The mini-swe-agent harness: a Python program that runs one shell command a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from polar.harnesses.base import Launch, LaunchRequest
from polar.harnesses.pip import PipHarness, PipProgram
from polar.harnesses.settings import MiniSweAgentSettings
from polar.runtimes.base import Preload, ProcessSpec
from polar.types import CallKind, Chat, Message, ToolCall

__all__ = ["VERSION", "MiniSweAgent"]

VERSION = "2.4.6"

_CONFIG = ".config/polar/mini.yaml"
_RECORD = ".local/share/polar/mini.traj.json"
_GLOBAL = ".config/mini-swe-agent"
_HIDES = ("OPENAI_", "MSWEA_", "LITELLM_")

_STATIC_ENV = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_SILENT_STARTUP": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Read while the modules are imported, so the same for a warm parent and for a session."""

_MODULES = (
    "minisweagent.run.mini",
    "minisweagent.agents.interactive",
    "minisweagent.environments.local",
    "minisweagent.models.litellm_model",
    "minisweagent.models.litellm_textbased_model",
    # What a first model call would import, which is most of what a session costs then.
    "httpcore",
    "litellm._service_logger",
    "litellm.integrations.generic_api.generic_api_callback",
    "litellm.integrations.prometheus_services",
    "litellm.llms.github_copilot.authenticator",
    "litellm.llms.litellm_proxy.chat.transformation",
    "litellm.llms.openai.chat.gpt_audio_transformation",
    "litellm.proxy._types",
    "litellm.proxy.openai_files_endpoints.common_utils",
    "litellm.proxy.spend_tracking.savings",
    "rich._emoji_codes",
    "rich.status",
)

_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

_TEXT_SYSTEM = """\
You do tasks in a Linux shell. Reply with exactly one bash block:

```bash
command
```

You will see its output and can go on. When the task is done, reply:

```bash
echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT
```
"""
_TEXT_ACTION = r"```bash\s*\n(.*?)\n```"
_OWN_BLOCK = "mswea_bash_command"
"""How the harness's own prompt calls a block of commands."""
_TEXT_FORMAT_ERROR = "{{error}} Reply with exactly one ```bash block."
_TOOLS_SYSTEM = """\
You do tasks in a Linux shell with the bash tool, one call a reply. When the task is done, run:
echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT
"""
_TOOLS_FORMAT_ERROR = "{{error}} Reply with one call of the bash tool."
_OBSERVATION = """\
<returncode>{{output.returncode}}</returncode>
{{output.output[:1000]}}{% if output.output|length > 1000 %}
[cut: {{output.output|length}} characters]{% endif %}"""


class MiniSweAgent(PipHarness[MiniSweAgentSettings]):
    """Starts `mini`, told by documented flags, variables and a config file.

    Args:
        settings: How it behaves.
    """

    name = "mini_swe_agent"
    program = PipProgram("mini_swe_agent", "mini-swe-agent", VERSION, "mini")

    def __init__(self, settings: MiniSweAgentSettings | None = None) -> None:
        super().__init__(settings or MiniSweAgentSettings())

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session."""
        home = request.place.home
        argv = [
            str(self._installation.executable),
            *(f"--config={spec}" for spec in self._specs(home)),
            f"--model=openai/{request.model}",
            *(() if request.instruction is None else (f"--task={request.instruction}",)),
            *(() if request.asks else ("--yolo",)),
            *(() if request.interactive else ("--exit-immediately",)),
            f"--output={home}/{_RECORD}",
        ]
        env = {
            **_STATIC_ENV,
            "MSWEA_GLOBAL_CONFIG_DIR": f"{home}/{_GLOBAL}",
            "OPENAI_API_BASE": f"{request.base_url}/v1",
            "OPENAI_API_KEY": request.key,
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": str(self._settings.model_attempts),
        }
        config = self._config(asks=request.asks)
        files = {_CONFIG: yaml.safe_dump(config, sort_keys=False)}
        return Launch(ProcessSpec(tuple(argv), env, preload=self._preload), files, _HIDES)

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Write each command, and at last the submission, as a block or a call of the tool."""
        return tuple(
            self._expert_turn(index, command) for index, command in enumerate((*commands, _SUBMIT))
        )

    def _expert_turn(self, index: int, command: str) -> Message:
        if self._settings.actions == "text":
            block = "bash" if self._settings.prompt == "short" else _OWN_BLOCK
            return Message("assistant", f"```{block}\n{command}\n```")
        call = ToolCall(f"expert{index}", "bash", json.dumps({"command": command}))
        return Message("assistant", "", tool_calls=(call,))

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell its calls, all of which are main ones, from those of the agent's own commands."""
        return "main" if "x-stainless-lang" in {name.lower() for name in headers} else "foreign"

    @property
    def _preload(self) -> Preload | None:
        if self._python is None:
            return None
        return Preload(self._python, _MODULES, "minisweagent.run.mini:app", _STATIC_ENV)

    def _specs(self, home: str) -> tuple[str, ...]:
        own = f"{home}/{_CONFIG}"
        if self._settings.prompt == "short":
            return (own,)
        text = self._settings.actions == "text"
        return ("mini_textbased.yaml" if text else "mini.yaml", own)

    def _config(self, *, asks: bool) -> dict[str, Any]:
        """Write the config file: all of it, or what differs from the harness's own."""
        settings = self._settings
        text = settings.actions == "text"
        agent: dict[str, Any] = {
            "mode": "confirm" if asks else "yolo",
            "step_limit": settings.step_limit,
            "cost_limit": 0.0,
            "max_consecutive_format_errors": settings.format_errors,
        }
        model: dict[str, Any] = {
            "model_class": "litellm_textbased" if text else "litellm",
            "model_kwargs": {"drop_params": True, "max_retries": 0},
        }
        if settings.prompt == "short":
            agent |= {
                "system_template": _TEXT_SYSTEM if text else _TOOLS_SYSTEM,
                "instance_template": "{{task}}",
            }
            model |= {
                "observation_template": _OBSERVATION,
                "format_error_template": _TEXT_FORMAT_ERROR if text else _TOOLS_FORMAT_ERROR,
            }
            if text:
                model["action_regex"] = _TEXT_ACTION
        return {
            "agent": agent,
            "model": model,
            "environment": {"timeout": settings.command_timeout_s, "env": {"PAGER": "cat"}},
        }
