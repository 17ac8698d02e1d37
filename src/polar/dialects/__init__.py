"""Wire formats that harnesses speak: each a pure translation, found by name."""

from __future__ import annotations

from collections.abc import Callable

from polar.dialects.base import (
    ChoicesEncoder,
    CountsTokens,
    Dialect,
    GivesChoices,
    ReadsOn,
    Route,
    StreamEncoder,
)
from polar.dialects.earlier import Earlier
from polar.plugins import Family

__all__ = [
    "ChoicesEncoder",
    "CountsTokens",
    "Dialect",
    "Earlier",
    "GivesChoices",
    "ReadsOn",
    "Route",
    "StreamEncoder",
    "load",
    "names",
]

_FAMILY: Family[Callable[[], Dialect]] = Family(
    "dialect",
    "polar.dialects",
    {
        "openai_chat": "polar.dialects.openai_chat:OpenAIChat",
        "anthropic_messages": "polar.dialects.anthropic_messages:AnthropicMessages",
        "openai_responses": "polar.dialects.openai_responses:OpenAIResponses",
        "google_generate": "polar.dialects.google_generate:GoogleGenerate",
    },
)


def names() -> tuple[str, ...]:
    """Name all dialects: Polar's own first, then those of installed plug-ins."""
    return _FAMILY.names()


def load(name: str) -> Dialect:
    """Load a dialect by its name.

    Raises:
        ConfigError: There is none of that name.
    """
    return _FAMILY.load(name)()
