"""Finds the settings model that each implementation of a family declares."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Protocol, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict

from polar import engines, harnesses, runtimes

__all__ = ["DEFAULT_NAMES", "NoSettings", "implementation_names", "settings_model"]

DEFAULT_NAMES: Mapping[str, str] = {
    "engine": "embedded",
    "harness": "mini_swe_agent",
    "runtime": "auto",
}
"""What a section names when the config does not."""


class _Family(Protocol):
    """What the package of a family offers."""

    def names(self) -> tuple[str, ...]: ...

    def load(self, name: str) -> type[Any]: ...


_FAMILIES: Mapping[str, _Family] = {"engine": engines, "harness": harnesses, "runtime": runtimes}


class NoSettings(BaseModel):
    """Nothing can be set."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def implementation_names(section: str) -> tuple[str, ...]:
    """List what a section can name."""
    own = ("auto",) if section == "runtime" else ()
    return (*own, *_FAMILIES[section].names())


def settings_model(section: str, name: str) -> type[BaseModel]:
    """Find what can be set for an implementation: the type of its constructor's `settings`.

    Raises:
        ConfigError: The family has none of that name.
    """
    if (section, name) == ("runtime", "auto"):
        return NoSettings
    implementation = _FAMILIES[section].load(name)
    declared = get_type_hints(implementation.__init__).get("settings", NoSettings)
    return _without_none(declared)


def _without_none(annotation: Any) -> type[BaseModel]:
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not type(None))
    assert isinstance(annotation, type)
    assert issubclass(annotation, BaseModel)
    return annotation
