"""Finds the settings model of each implementation of a family."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Protocol, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict

from polar import engines, harnesses, runtimes
from polar.engines.settings import (
    EmbeddedSettings,
    LlamaCppSettings,
    OpenAISettings,
    SglangSettings,
    VllmSettings,
)
from polar.errors import ConfigError
from polar.harnesses.settings import (
    AiderSettings,
    ClaudeAgentSdkSettings,
    ClaudeCodeSettings,
    CodexSettings,
    GeminiCliSettings,
    HarnessSettings,
    MiniSweAgentSettings,
    OpenAiAgentsSettings,
    OpenCodeSettings,
    PiSettings,
    QwenCodeSettings,
    ShellSettings,
)
from polar.runtimes.settings import BubblewrapSettings, LocalSettings

__all__ = [
    "DEFAULT_NAMES",
    "NoSettings",
    "implementation_names",
    "own_names",
    "settings_model",
    "work_settings",
]


class NoSettings(BaseModel):
    """Nothing can be set."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Family(Protocol):
    """What the package of a family offers."""

    def names(self) -> tuple[str, ...]: ...

    def load(self, name: str) -> Any: ...


_FAMILIES: Mapping[str, _Family] = {"engine": engines, "harness": harnesses, "runtime": runtimes}

_OWN: Mapping[str, Mapping[str, type[BaseModel]]] = {
    "engine": {
        "embedded": EmbeddedSettings,
        "llamacpp": LlamaCppSettings,
        "openai": OpenAISettings,
        "sglang": SglangSettings,
        "vllm": VllmSettings,
    },
    "harness": {
        "aider": AiderSettings,
        "claude_agent_sdk": ClaudeAgentSdkSettings,
        "claude_code": ClaudeCodeSettings,
        "codex": CodexSettings,
        "gemini_cli": GeminiCliSettings,
        "mini_swe_agent": MiniSweAgentSettings,
        "openai_agents": OpenAiAgentsSettings,
        "opencode": OpenCodeSettings,
        "pi": PiSettings,
        "qwen_code": QwenCodeSettings,
        "shell": ShellSettings,
    },
    "runtime": {"auto": NoSettings, "bubblewrap": BubblewrapSettings, "local": LocalSettings},
}
"""Settings of Polar's own implementations: known without importing them, and so without torch."""

DEFAULT_NAMES: Mapping[str, str] = {
    "engine": "embedded",
    "harness": "mini_swe_agent",
    "runtime": "auto",
}
"""What a section names when the config does not."""


def implementation_names(section: str) -> tuple[str, ...]:
    """List what a section can name: Polar's own first, then installed plug-ins."""
    return tuple(dict.fromkeys((*_OWN[section], *_FAMILIES[section].names())))


def own_names(section: str) -> tuple[str, ...]:
    """List what a section can name without any plug-in."""
    return tuple(_OWN[section])


def settings_model(section: str, name: str) -> type[BaseModel]:
    """Find what can be set for an implementation; for a plug-in, the type of its `settings`.

    Raises:
        ConfigError: The family has none of that name; the key that names it is where.
    """
    if (own := _OWN[section].get(name)) is not None:
        return own
    try:
        implementation = _FAMILIES[section].load(name)
    except ConfigError as error:
        raise ConfigError(error.what, where=f"{section}.name", fix=error.fix) from error
    declared = get_type_hints(implementation.__init__).get("settings", NoSettings)
    return _without_none(declared)


def work_settings(name: object) -> Mapping[str, object]:
    """Say what `polar run` sets for a harness where nobody does.

    Args:
        name: A name of the harnesses family; anything else counts as the default.

    Raises:
        ConfigError: The family has none of that name.
    """
    model = settings_model("harness", name if isinstance(name, str) else DEFAULT_NAMES["harness"])
    return model.at_work if issubclass(model, HarnessSettings) else {}


def _without_none(annotation: Any) -> type[BaseModel]:
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not type(None))
    assert isinstance(annotation, type)
    assert issubclass(annotation, BaseModel)
    return annotation
