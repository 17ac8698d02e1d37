"""What users can set about harness presets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from polar.tasks.problems import Refused

__all__ = [
    "AgentScriptSettings",
    "AiderSettings",
    "ClaudeAgentSdkSettings",
    "ClaudeCodeSettings",
    "ClaudeSettings",
    "CodexSettings",
    "ExtensibleSettings",
    "GeminiCliSettings",
    "HarnessSettings",
    "InstalledSettings",
    "McpServer",
    "McpSettings",
    "MiniSweAgentSettings",
    "NodeProgramSettings",
    "OpenAiAgentsSettings",
    "OpenCodeSettings",
    "PiSettings",
    "ProgramSettings",
    "QwenCodeSettings",
    "ShellSettings",
]


_EXTENSIBLE = "claude_agent_sdk, claude_code, codex, gemini_cli, opencode, qwen_code"
_EXTENSIONS = {
    "mcp_servers": ("MCP servers", f"{_EXTENSIBLE}, openai_agents"),
    "skills": ("skills", _EXTENSIBLE),
}
"""Setting -> what it gives, and the harnesses that can be given it."""


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


HostFolder = Annotated[Path, AfterValidator(_absolute)]
"""Absolute, so that a run resumes from anywhere."""


class HarnessSettings(BaseModel):
    """What holds for the settings of every harness."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_work: ClassVar[Mapping[str, object]] = MappingProxyType({})
    """What `polar run` sets unless it is told otherwise: what small models in training do without,
    and people do not."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_extensions(cls, data: object) -> object:
        """Say of what other harnesses can be given that this one cannot."""
        for key, (words, others) in _EXTENSIONS.items():
            if isinstance(data, dict) and key in data and key not in cls.model_fields:
                raise Refused(
                    f"`{key}`: this harness cannot be given {words}",
                    fix=f"Leave it out, or choose one of: {others}.",
                )
        return data


class ShellSettings(HarnessSettings):
    """Settings of the `shell` harness: any command line."""

    command: str
    """Line for `/bin/sh`; `{instruction}`, `{base_url}`, `{key}` and `{model}` are filled in,
    quoted. `{{` and `}}` stand for braces."""
    env: dict[str, str] = Field(default_factory=dict)
    """More variables for its environment."""
    read_only: tuple[Path, ...] = ()
    """Host folders that it needs to see, at the same path."""
    whole_calls: bool = False
    """Whether tool calls are only given when all of them is sampled: for a program that mends a
    call which was cut, and runs it."""


class InstalledSettings(HarnessSettings):
    """What can be set about every harness that is installed."""

    executable: Path | None = None
    """Path of the program; absent: Polar's own installation, then PATH."""
    cache: Path = Path("~/.cache/polar")
    """Folder of Polar's own installations."""


class MiniSweAgentSettings(InstalledSettings):
    """Settings of the `mini_swe_agent` harness."""

    at_work = MappingProxyType({"actions": "tools", "prompt": "default", "step_limit": 0})

    actions: Literal["text", "tools"] = "text"
    """Whether the model writes commands as a text block, or calls a tool."""
    prompt: Literal["short", "default"] = "short"
    """`short`: a prompt of about 100 tokens for small models; `default`: the harness's own."""
    step_limit: int = Field(default=4, ge=0)
    """Most model calls that it makes; 0 is no limit."""
    format_errors: int = Field(default=3, ge=0)
    """Replies without exactly one action in a row after which it gives up; 0 is no limit."""
    command_timeout_s: int = Field(default=30, ge=1)
    """Longest that one command of the agent may run."""
    model_attempts: int = Field(default=3, ge=1)
    """How often it tries a model call that fails."""


class ProgramSettings(InstalledSettings):
    """What can be set about every harness that is one program with a history of its own."""

    context_window: int = Field(default=32768, ge=1)
    """Tokens that it believes the model can hold; it summarises the history when they are used."""
    extra_args: tuple[str, ...] = ()
    """More words for its command line."""


class McpServer(BaseModel):
    """A tool server that the harness starts in its sandbox and talks to by stdin and stdout."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str = Field(min_length=1)
    """Program, as the sandbox finds it."""
    args: tuple[str, ...] = ()
    """The rest of its command line."""
    env: dict[str, str] = Field(default_factory=dict)
    """More variables for its environment."""
    read_only: tuple[HostFolder, ...] = ()
    """Host folders that it needs to see, at the same path."""


class McpSettings(InstalledSettings):
    """What can be set about every harness that knows MCP servers."""

    mcp_servers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")], McpServer] = Field(
        default_factory=dict
    )
    """Name -> MCP server whose tools it offers to the model, beside its own."""


class ExtensibleSettings(McpSettings, ProgramSettings):
    """What can be set about every harness that knows MCP servers and skills."""

    skills: tuple[HostFolder, ...] = ()
    """Folders with a `SKILL.md`; each is copied into its home under the folder's name."""

    @model_validator(mode="after")
    def _tell_skills_apart(self) -> Self:
        names = [path.name for path in self.skills]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise Refused(f"`skills`: two are named '{twice}'", fix="Rename a folder.")
        return self


class NodeProgramSettings(ProgramSettings):
    """What can be set about every harness that Node runs."""

    node: Path | None = None
    """Path of `node`; absent: the one installed with it, then PATH."""


class PiSettings(NodeProgramSettings):
    """Settings of the `pi` harness."""

    at_work = MappingProxyType(
        {
            "tools": ("bash", "read", "edit", "write"),
            "system_prompt": None,
            "max_tokens": 4096,
            "own_files": True,
        }
    )

    tools: tuple[str, ...] = ("bash",)
    """Tools that it offers to the model: `bash`, `read`, `edit`, `write`, `grep`, `find`, `ls`."""
    system_prompt: str | None = (
        "You work in a Linux shell. Use the bash tool to do the task. When it is done, say so."
    )
    """Replaces its system prompt; absent: its own, of about 600 tokens."""
    context_window: int = Field(default=8192, ge=1)
    """Tokens that it believes the model can hold."""
    compaction: bool = True
    """Whether it has the model summarise the history when less than `max_tokens` are left."""
    max_tokens: int = Field(default=1024, ge=1)
    """Most tokens that it asks for in a call."""
    own_files: bool = False
    """Whether it reads what the work folder has for it: `AGENTS.md`, skills, prompts, extensions,
    themes."""
    model_retries: int = Field(default=2, ge=0)
    """How often it repeats a model call that fails."""


class CodexSettings(ExtensibleSettings):
    """Settings of the `codex` harness."""

    subagents: bool = False
    """Whether it offers the tools that start sub-agents: calls of kind subagent."""
    retries: int = Field(default=4, ge=0)
    """How often it repeats a model call that fails or breaks off."""


class ClaudeSettings(ExtensibleSettings):
    """What can be set about every harness that starts Claude Code."""

    at_work = MappingProxyType({"tools": ()})

    tools: tuple[str, ...] = ("Bash", "Edit", "Read", "Write")
    """Tools that it offers to the model; empty: all that it has."""
    subagents: bool = False
    """Whether `Agent` is among its tools, which starts sub-agents: calls of kind subagent."""
    max_tokens: int = Field(default=4096, ge=1)
    """Most tokens that it asks for in a call."""
    retries: int = Field(default=2, ge=0)
    """How often it repeats a model call that fails."""


class ClaudeCodeSettings(ClaudeSettings):
    """Settings of the `claude_code` harness."""

    bare: bool = False
    """Whether its system prompt is left out but for a line."""


class QwenCodeSettings(NodeProgramSettings, ExtensibleSettings):
    """Settings of the `qwen_code` harness."""

    bare: bool = False
    """Whether it leaves out most tools and most of its system prompt."""
    memory: bool = False
    """Whether a sub-agent writes down memories after each task: model calls of kind auxiliary."""


class GeminiCliSettings(NodeProgramSettings, ExtensibleSettings):
    """Settings of the `gemini_cli` harness."""


class OpenCodeSettings(ExtensibleSettings):
    """Settings of the `opencode` harness."""

    max_tokens: int = Field(default=4096, ge=1)
    """Most tokens that it asks for in a call."""
    title: bool = False
    """Whether it has the model name each session: a call of kind auxiliary."""


class AiderSettings(ProgramSettings):
    """Settings of the `aider` harness."""

    at_work = MappingProxyType({"git": True})

    edit_format: Literal["diff", "diff-fenced", "udiff", "whole"] = "diff"
    """How the model writes edits: as text, in every format; only with `diff` it can also have
    commands run."""
    files: tuple[str, ...] = ()
    """Files of the work folder that the model sees from the start; more are added as it names
    them, which needs `git`."""
    git: bool = False
    """Whether it looks at the Git repository of the work folder; where there is none it makes one,
    unless it has to ask first."""
    commits: bool = False
    """Whether it commits its edits, with messages of the model's: calls of kind auxiliary. It has
    `git` then."""
    commands: bool = True
    """Whether it runs the shell commands that the model suggests."""
    lint: bool = True
    """Whether the model sees the errors of its linter after an edit, up to three times a task."""
    test_command: str | None = None
    """Shell command that is run after each edit; the model sees its output where it fails, up to
    three times a task."""
    map_tokens: int = Field(default=0, ge=0)
    """Tokens of its map of the repository; 0 is none. It keeps a cache of it in the work folder."""
    max_tokens: int = Field(default=4096, ge=1)
    """Most tokens that it asks for in a call."""


class AgentScriptSettings(McpSettings):
    """What can be set about every harness that is a program built on a library for agents."""

    script: HostFolder | None = None
    """Your own Python program; absent: the example that comes with Polar. The sandbox shows its
    folder, so keep it in one of its own."""
    extra_args: tuple[str, ...] = ()
    """More words for its command line, after the path of its settings."""
    system_prompt: str | None = (
        "You work in a Linux shell. Use your tools to do the task. When it is done, say so."
    )
    """What the example's agent is told first; absent: nothing."""
    max_turns: int = Field(default=50, ge=1)
    """Most model calls that the example's agent makes for a task."""


class OpenAiAgentsSettings(AgentScriptSettings):
    """Settings of the `openai_agents` harness."""

    api: Literal["chat", "responses"] = "responses"
    """Wire format of the example's model calls: OpenAI Chat Completions or Responses."""
    max_tokens: int = Field(default=1024, ge=1)
    """Most tokens that the example asks for in a call."""
    command_timeout_s: int = Field(default=30, ge=1)
    """Longest that one command of the example's agent may run."""


class ClaudeAgentSdkSettings(AgentScriptSettings, ClaudeSettings):
    """Settings of the `claude_agent_sdk` harness."""
