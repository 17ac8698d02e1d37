"""Aider: a Python program whose model writes edits as text, and calls no tools."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from polar.harnesses.base import Launch, LaunchRequest
from polar.harnesses.openings import system_prompt
from polar.harnesses.pip import PipHarness, PipProgram
from polar.harnesses.settings import AiderSettings
from polar.runtimes.base import Preload, ProcessSpec
from polar.types import CallKind, Chat, Message

__all__ = ["VERSION", "Aider"]

VERSION = "0.86.2"

_FOLDER = ".config/polar/aider"
_HIDES = ("AIDER_", "OPENAI_", "LITELLM_")
_QUIET = (
    *("--no-analytics", "--no-check-update", "--no-show-release-notes", "--no-gitignore"),
    *("--no-show-model-warnings", "--no-check-model-accepts-settings", "--no-detect-urls"),
)
_UNATTENDED = ("--no-pretty", "--no-fancy-input", "--no-notifications")
_STATIC_ENV = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
_MODULES = (
    "aider.main",
    # What it would import while it starts and in its first call.
    "httpcore",
    "litellm",
    "litellm._service_logger",
    "litellm.integrations.prometheus_services",
    "litellm.litellm_core_utils.token_counter",
    "litellm.llms.openai.openai",
    "networkx",
    "numpy",
    "openai.resources",
    "tiktoken_ext.openai_public",
)
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""A process that is forked has one."""
_GIT_WHERE_THERE_IS_ONE = (
    'git rev-parse --git-dir >/dev/null 2>&1 || set -- "$@" --no-git; exec "$0" "$@"'
)
"""It would make a repository of any other folder."""
_COMMIT_MESSAGE = "You are an expert software engineer that generates concise, one-line Git commit"
_SUMMARY = "*Briefly* summarize this partial conversation about programming."


class Aider(PipHarness[AiderSettings]):
    """Starts `aider --message`, told by flags and by files that describe the model.

    Analytics, updates, release notes, look-ups of models and URLs, commits and the repository map
    are off. Its own files lie in its home. It counts on `HOME` alone for those.

    Args:
        settings: How it behaves.
    """

    name = "aider"
    program = PipProgram("aider", "aider-chat", VERSION, "aider")

    def launch(self, request: LaunchRequest) -> Launch:
        """Say how to start one session."""
        settings = self._settings
        argv = (str(self._installation.executable), *self._words(request))
        if request.asks and settings.git and not settings.commits:
            argv = ("/bin/sh", "-c", _GIT_WHERE_THERE_IS_ONE, *argv)
        env = {"HOME": request.place.home, **_STATIC_ENV}
        files = {
            f"{_FOLDER}/models.json": json.dumps([self._model(request)]),
            f"{_FOLDER}/metadata.json": json.dumps({_model(request): self._metadata()}),
        }
        stdin = None if request.interactive else ""
        return Launch(ProcessSpec(argv, env, stdin, self._preload(request)), files, _HIDES)

    def expert_turns(self, commands: Sequence[str]) -> tuple[Message, ...]:
        """Suggest all commands in one reply, the last: of its formats only `diff` has commands."""
        if self._settings.edit_format != "diff" or not self._settings.commands:
            return ()
        lines = "\n".join(map(_one_line, commands))
        return (Message("assistant", f"```bash\n{lines}\n```"),)

    def kind_of(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        """Tell main calls, commit messages, summaries and foreign calls apart."""
        if "x-stainless-lang" not in headers:
            return "foreign"
        prompt = system_prompt(chat)
        if prompt.startswith(_SUMMARY):
            return "compaction"
        return "auxiliary" if prompt.startswith(_COMMIT_MESSAGE) else "main"

    def _preload(self, request: LaunchRequest) -> Preload | None:
        if self._python is None or request.asks:
            return None
        return Preload(self._python, _MODULES, "aider.main:main", {**_STATIC_ENV, **_ONE_THREAD})

    def _words(self, request: LaunchRequest) -> tuple[str, ...]:
        settings = self._settings
        folder = f"{request.place.home}/{_FOLDER}"
        return (
            *(f"--model={_model(request)}", f"--weak-model={_model(request)}"),
            f"--model-settings-file={folder}/models.json",
            f"--model-metadata-file={folder}/metadata.json",
            f"--input-history-file={folder}/input.history",
            f"--chat-history-file={folder}/chat.history.md",
            f"--map-tokens={settings.map_tokens}",
            *_QUIET,
            *_flag("auto-commits", settings.commits),
            *_flag("dirty-commits", settings.commits),
            *_flag("suggest-shell-commands", settings.commands),
            *_flag("auto-lint", settings.lint),
            *_flag("git", settings.git or settings.commits),
            *self._tests(),
            *_approvals(request),
            *settings.extra_args,
            *_message(request),
            *(f"--file={file}" for file in settings.files),
        )

    def _tests(self) -> tuple[str, ...]:
        command = self._settings.test_command
        return () if command is None else ("--auto-test", f"--test-cmd={command}")

    def _model(self, request: LaunchRequest) -> dict[str, object]:
        """Describe the model: address and key too, which a `.env` of the folder would change."""
        return {
            "name": _model(request),
            "edit_format": self._settings.edit_format,
            "weak_model_name": _model(request),
            "use_repo_map": self._settings.map_tokens > 0,
            # Else it shows the model replies that the model never wrote.
            "examples_as_sys_msg": True,
            "extra_params": {
                "api_base": f"{request.base_url}/v1",
                "api_key": request.key,
                "max_tokens": self._settings.max_tokens,
            },
        }

    def _metadata(self) -> dict[str, object]:
        """Say how long and how dear calls are: for a model without this, it asks the network."""
        settings = self._settings
        return {
            "max_input_tokens": settings.context_window,
            "max_tokens": settings.max_tokens,
            "max_output_tokens": settings.max_tokens,
            "input_cost_per_token": 0.0,
            "output_cost_per_token": 0.0,
            "litellm_provider": "openai",
            "mode": "chat",
        }


def _model(request: LaunchRequest) -> str:
    return f"openai/{request.model}"


def _flag(name: str, on: bool) -> tuple[str, ...]:
    return (f"--{name}" if on else f"--no-{name}",)


def _approvals(request: LaunchRequest) -> tuple[str, ...]:
    """Say who answers its questions.

    With `--yes-always` it edits without asking and runs no command. Where its input is empty, it
    takes every question's own default, by which it runs commands as well.
    """
    if request.interactive:
        return () if request.asks else ("--yes-always",)
    return (*_UNATTENDED, *(("--yes-always",) if request.asks else ()))


def _message(request: LaunchRequest) -> tuple[str, ...]:
    """Give the task as one word; a blank keeps `/` and `!` from being read as commands of it."""
    task = request.instruction
    if task is None:
        return ()
    return (f"--message= {task}" if task.startswith(("/", "!")) else f"--message={task}",)


def _one_line(command: str) -> str:
    """Write a command without line breaks: each line would be run on its own."""
    if "\n" not in command:
        return command
    escaped = command.replace("\\", "\\\\").replace("\n", "\\n")
    return f"eval \"$(printf '%b' {shlex.quote(escaped)})\""
