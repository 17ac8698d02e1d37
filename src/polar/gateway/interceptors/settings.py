"""Settings of Polar's own interceptors."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from polar.tasks.problems import Refused

__all__ = [
    "HistorySettings",
    "ModelChoiceSettings",
    "NoSettings",
    "SystemPromptSettings",
    "ToolDescriptionsSettings",
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NoSettings(_Strict):
    """Nothing can be set."""


class SystemPromptSettings(_Strict):
    """Adds a text to the system prompt."""

    text: str = Field(min_length=1)
    """What is added, as a paragraph of its own."""
    place: Literal["before", "after"] = "after"
    """On which side of the harness's own system prompt; without one the text is the prompt."""


class ToolDescriptionsSettings(_Strict):
    """Rewrites what the model is told about tools; their names and parameters stay."""

    replace: dict[str, str] = Field(default_factory=dict)
    """Name of a tool -> its new description."""
    add: dict[str, str] = Field(default_factory=dict)
    """Name of a tool -> a text after its description, as a paragraph of its own."""
    max_chars: int | None = Field(default=None, ge=1)
    """Descriptions, as replaced and added to, are cut to this length."""


class HistorySettings(_Strict):
    """Shortens the results of tool calls that were long ago."""

    keep_last: int = Field(default=8, ge=0)
    """So many of the latest tool results, or more, stay whole."""
    step: int = Field(default=8, ge=1)
    """Results are shortened so many at a time; in between, the conversation stays one chain."""
    head_chars: int = Field(default=200, ge=0)
    """What is left of the beginning of a shortened result."""
    tail_chars: int = Field(default=200, ge=0)
    """What is left of its end."""


class ModelChoiceSettings(_Strict):
    """Chooses the model by the name that the harness asks for."""

    models: dict[str, str] = Field(min_length=1)
    """Pattern (`*`, `?`, `[...]`) -> name of a model that the engine serves; the first that fits
    the name asked for counts, and where none fits the served model answers as ever."""

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not all(self.models.values()):
            raise Refused("a pattern in `models` leads to no model", fix="Name one.")
        return self
