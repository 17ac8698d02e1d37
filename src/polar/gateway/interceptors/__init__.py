"""Interceptors: what the model sees of a request, where that is to differ from what was sent."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import get_type_hints

from pydantic import BaseModel

from polar.errors import ConfigError
from polar.gateway.interceptors.base import Interceptor
from polar.gateway.interceptors.settings import NoSettings
from polar.tasks.problems import nearest

__all__ = ["Interceptor", "load", "names", "own_names", "settings_model"]

_GROUP = "polar.interceptors"
_BUILT_IN = {
    "history": "polar.gateway.interceptors.history:ShortenHistory",
    "model_choice": "polar.gateway.interceptors.model_choice:ChooseModel",
    "system_prompt": "polar.gateway.interceptors.system_prompt:AddToSystemPrompt",
    "tool_descriptions": "polar.gateway.interceptors.tool_descriptions:DescribeTools",
}


def own_names() -> tuple[str, ...]:
    """List Polar's own interceptors."""
    return tuple(_BUILT_IN)


def names() -> tuple[str, ...]:
    """List the interceptors of Polar and of installed packages."""
    return tuple(sorted({*_BUILT_IN, *(found.name for found in entry_points(group=_GROUP))}))


def load(name: str) -> type[Interceptor]:
    """Import the interceptor of that name.

    Raises:
        ConfigError: There is none.
    """
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        found: type[Interceptor] = getattr(import_module(module), attribute)
        return found
    for entry in entry_points(group=_GROUP, name=name):
        found = entry.load()
        return found
    raise ConfigError(f"there is no interceptor `{name}`", fix=nearest(name, names()))


def settings_model(name: str) -> type[BaseModel]:
    """Find what can be set for an interceptor: the type of its `settings`.

    Raises:
        ConfigError: There is none of that name.
    """
    declared = get_type_hints(load(name).__init__).get("settings", NoSettings)
    assert isinstance(declared, type)
    assert issubclass(declared, BaseModel)
    return declared
