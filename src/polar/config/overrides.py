"""Settings that win over a config file's, and which of them a wrong setting is from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polar.config.documents import parse_value
from polar.errors import ConfigError

__all__ = ["Override", "Overrides", "apply_override", "origin", "parse_override"]

_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class Override:
    """A setting that was given on the command line."""

    key: str
    """`train.lr`"""
    value: object
    """What a JSON document could hold."""
    given: str
    """As it was given, for errors: `--set train.lr=1e-5`, `--harness pi`."""


Overrides = Sequence[str | Override]
"""Each one's text is what `parse_override` reads."""


def parse_override(text: str) -> Override:
    """Read `KEY=VALUE`, the value as YAML writes it.

    Raises:
        ConfigError: It is not of that form.
    """
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(
            f"`{text}` does not set anything",
            where="--set",
            fix="Write KEY=VALUE: train.lr=1e-5.",
        )
    return Override(key, parse_value(value), f"--set {text}")


def apply_override(override: Override, data: dict[str, Any]) -> None:
    """Set a value in a document, in place.

    Raises:
        ConfigError: What should hold the key holds no keys.
    """
    *parents, last = override.key.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                f"`{parent}` has the value {inner!r}, so nothing can be set in it",
                where=_short(override.given),
                fix="Set a key that holds other keys.",
            )
        data = inner
    data[last] = override.value


def origin(
    places: Sequence[str],
    overrides: Sequence[Override],
    document: str,
    *,
    moved: Mapping[str, str],
) -> str:
    """Say where a wrong setting is from.

    Args:
        places: The keys that it is about; a section's if it is about several of its keys.
        overrides: In the order that they were applied in.
        document: Where all other settings are from.
        moved: Keys of earlier releases -> where they stand now.

    Returns:
        The document, or how the overrides were given, or both where it takes both.
    """
    last = {override.key: override for override in overrides}.values()
    keys = {each.given: (each.key, moved.get(each.key, each.key)) for each in last}
    named = [
        given
        for given, known in keys.items()
        if any(_within(place, key) or _within(key, place) for place in places for key in known)
    ]
    if not named:
        return document
    wholly = all(
        any(_within(place, key) for given in named for key in keys[given]) for place in places
    )
    told = " ".join(map(_short, named))
    return told if wholly else f"{document} with {told}"


def _within(place: str, key: str) -> bool:
    return not key or place == key or place.startswith((f"{key}.", f"{key}["))


def _short(given: str) -> str:
    return given if len(given) <= _SHOWN_CHARS else f"{given[:_SHOWN_CHARS]}..."
