"""Typed reading of JSON requests: every refusal names the field it is about."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import orjson

from polar.errors import BadRequest

__all__ = ["Fields", "parse_object", "refuse"]

_MARGIN = 60
"""Levels, of the 254 that orjson writes."""
_NOTHING: Mapping[str, tuple[Any, ...]] = MappingProxyType({})


def refuse(what: str, *, where: str | None = None, fix: str | None = None) -> BadRequest:
    """Make the error for a field that is wrong or not supported."""
    return BadRequest(what, where=where, fix=fix)


def parse_object(body: bytes) -> Fields:
    """Read a request body that must be a JSON object.

    Raises:
        BadRequest: It is not.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise refuse(f"the body is not valid JSON: {error}") from error
    _check_depth(value)
    return Fields.of(value, "")


def _check_depth(value: Any) -> None:
    """Refuse what could be read but not written again: the call could not be put on record.

    Where a part of a request is kept, it stands within other things; so does the probe.
    """
    for _ in range(_MARGIN):
        value = [value]
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise refuse("the body is nested too deeply", fix="Nest less than 190 levels.") from error


class Fields:
    """The fields of one JSON object, with the object's place in the request.

    A field that is null reads like one that is absent.
    """

    __slots__ = ("_values", "where")

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    @classmethod
    def of(cls, value: Any, where: str) -> Fields:
        """Take a value that must be an object."""
        if not isinstance(value, dict):
            raise refuse("expected an object", where=where or "body")
        return cls(value, where)

    def __iter__(self) -> Any:
        """Iterate over the names of the fields that are not null."""
        return (name for name, value in self._values.items() if value is not None)

    def path(self, name: str) -> str:
        """Say where a field is, like `messages[2].content`."""
        return f"{self.where}.{name}" if self.where else name

    def refuse_others(
        self,
        read: Collection[str],
        *,
        without_effect: Collection[str] = (),
        only: Mapping[str, tuple[Any, ...]] = _NOTHING,
    ) -> None:
        """Refuse every field that is neither read nor without effect.

        Args:
            read: Names of the fields that are read.
            without_effect: Names of fields that ask for nothing that would change what is
                sampled.
            only: Fields that are taken only with a value that changes nothing.

        Raises:
            BadRequest: There is such a field, or one with another value.
        """
        for name in self:
            if name in read or name in without_effect:
                continue
            where, fix = self.path(name), "Leave it out."
            if name not in only:
                raise refuse(f"'{name}' is not supported", where=where, fix=fix)
            if self.raw(name) not in only[name]:
                allowed = " or ".join(repr(value) for value in only[name])
                raise refuse(f"'{name}' is supported only as {allowed}", where=where, fix=fix)

    def raw(self, name: str) -> Any:
        """Read a field of any type; None if absent."""
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        """Read a string; None if absent."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise refuse("expected a string", where=self.path(name))
        return value

    def required_text(self, name: str) -> str:
        """Read a string that must be there."""
        value = self.text(name)
        if value is None:
            raise refuse("a required string is missing", where=self.path(name))
        return value

    def flag(self, name: str, *, absent: bool = False) -> bool:
        """Read a boolean."""
        value = self._values.get(name)
        if value is None:
            return absent
        if not isinstance(value, bool):
            raise refuse("expected true or false", where=self.path(name))
        return value

    def integer(
        self, name: str, *, least: int | None = None, most: int | None = None
    ) -> int | None:
        """Read an integer; None if absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise refuse("expected an integer", where=self.path(name))
        if least is not None and value < least:
            raise refuse(f"expected at least {least}", where=self.path(name))
        if most is not None and value > most:
            raise refuse(f"expected at most {most}", where=self.path(name))
        return value

    def number(self, name: str, *, least: float, most: float) -> float | None:
        """Read a number within bounds; None if absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise refuse("expected a number", where=self.path(name))
        if not least <= value <= most:
            raise refuse(f"expected a number from {least} to {most}", where=self.path(name))
        return float(value)

    def items(self, name: str) -> list[Any]:
        """Read an array; empty if absent."""
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise refuse("expected an array", where=self.path(name))
        return value

    def objects(self, name: str, *, start: int = 0) -> list[Fields]:
        """Read an array of objects, from one on; empty if absent."""
        path = self.path(name)
        items = self.items(name)[start:]
        return [Fields.of(item, f"{path}[{i}]") for i, item in enumerate(items, start)]

    def object(self, name: str) -> Fields | None:
        """Read an object; None if absent."""
        value = self._values.get(name)
        return None if value is None else Fields.of(value, self.path(name))

    def strings(self, name: str) -> tuple[str, ...]:
        """Read an array of strings that are not empty; empty if absent."""
        found = self.items(name)
        if not all(isinstance(string, str) and string for string in found):
            raise refuse("expected strings that are not empty", where=self.path(name))
        return tuple(found)
