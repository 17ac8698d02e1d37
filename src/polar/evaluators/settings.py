"""Reads an evaluator's settings strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from polar.errors import ConfigError
from polar.tasks.problems import problems_in

__all__ = ["read_settings"]

SettingsT = TypeVar("SettingsT", bound=BaseModel)


def read_settings(model: type[SettingsT], config: Mapping[str, Any], *, name: str) -> SettingsT:
    """Validate the settings of the evaluator `name`.

    Raises:
        ConfigError: Names each setting that is unknown, missing or wrong.
    """
    try:
        return model.model_validate(dict(config))
    except ValidationError as error:
        first, *others = problems_in(error, model)
        fix = " ".join([first.fix, *(f"Also: {other}" for other in others)])
        raise ConfigError(first.what, where=f"evaluator `{name}`", fix=fix) from error
