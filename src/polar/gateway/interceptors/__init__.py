"""Interceptors: what the model sees of a request, where that is to differ from what was sent."""

from __future__ import annotations

from typing import get_type_hints

from pydantic import BaseModel

from polar.gateway.interceptors.base import Interceptor
from polar.gateway.interceptors.settings import NoSettings
from polar.plugins import Family

__all__ = ["Interceptor", "load", "names", "own_names", "settings_model"]

_FAMILY: Family[type[Interceptor]] = Family(
    "interceptor",
    "polar.interceptors",
    {
        "history": "polar.gateway.interceptors.history:ShortenHistory",
        "model_choice": "polar.gateway.interceptors.model_choice:ChooseModel",
        "system_prompt": "polar.gateway.interceptors.system_prompt:AddToSystemPrompt",
        "tool_descriptions": "polar.gateway.interceptors.tool_descriptions:DescribeTools",
    },
)


def own_names() -> tuple[str, ...]:
    """List Polar's own interceptors."""
    return tuple(_FAMILY.own)


def names() -> tuple[str, ...]:
    """List the interceptors of Polar and of installed packages."""
    return _FAMILY.names()


def load(name: str) -> type[Interceptor]:
    """Import the interceptor of that name.

    Raises:
        ConfigError: There is none.
    """
    return _FAMILY.load(name)


def settings_model(name: str) -> type[BaseModel]:
    """Find what can be set for an interceptor: the type of its `settings`.

    Raises:
        ConfigError: There is none of that name.
    """
    declared = get_type_hints(load(name).__init__).get("settings", NoSettings)
    assert isinstance(declared, type)
    assert issubclass(declared, BaseModel)
    return declared
