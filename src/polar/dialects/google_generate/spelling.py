"""Google's JSON: every field may be written in camelCase or in snake_case.

Fields are read, and refused, under their camelCase names. What a user of the API made (schemas
in JSON form, arguments and results of functions) is never renamed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from polar.dialects.fields import Fields, refuse

__all__ = ["camel_case", "child", "children", "refuse_others", "spelled", "whole_number"]

_NOTHING: Mapping[str, tuple[Any, ...]] = MappingProxyType({})
_UNDERSCORE = re.compile(r"(?<=[a-z0-9])_([a-z0-9])")


def camel_case(name: str) -> str:
    """Spell a field's name the way Google documents it."""
    return _UNDERSCORE.sub(lambda found: found[1].upper(), name)


def spelled(fields: Fields) -> Fields:
    """Rename the fields of an object to camelCase.

    Raises:
        BadRequest: A field is given in both spellings.
    """
    values: dict[str, Any] = {}
    for name in fields:
        if (spelling := camel_case(name)) in values:
            raise refuse(f"'{spelling}' is given twice", where=fields.path(spelling))
        values[spelling] = fields.raw(name)
    return Fields(values, fields.where)


def child(fields: Fields, name: str) -> Fields | None:
    """Read an object; None if absent."""
    found = fields.object(name)
    return None if found is None else spelled(found)


def children(fields: Fields, name: str) -> list[Fields]:
    """Read an array of objects; like Google's parser, take one object for an array of one."""
    if isinstance(value := fields.raw(name), dict):
        return [spelled(Fields.of(value, fields.path(name)))]
    return [spelled(found) for found in fields.objects(name)]


def whole_number(fields: Fields, name: str, *, least: int | None = None) -> int | None:
    """Read an integer that may be written like 40.0; None if absent."""
    value = fields.raw(name)
    if isinstance(value, float) and value.is_integer():
        fields = Fields({name: int(value)}, fields.where)
    return fields.integer(name, least=least)


def refuse_others(
    fields: Fields,
    read: Collection[str],
    *,
    without_effect: Collection[str] = (),
    only: Mapping[str, tuple[Any, ...]] = _NOTHING,
) -> None:
    """Refuse every field that is neither read nor without effect.

    Args:
        fields: The object.
        read: Names of the fields that are read.
        without_effect: Names of fields that ask for nothing that would change what is sampled.
        only: Fields that are taken only with a value that changes nothing.

    Raises:
        BadRequest: There is such a field, or one with another value.
    """
    for name in fields:
        if name in read or name in without_effect:
            continue
        where = fields.path(name)
        if name not in only:
            raise refuse(f"'{name}' is not supported", where=where, fix="Leave it out.")
        if fields.raw(name) not in only[name]:
            allowed = " or ".join(repr(value) for value in only[name])
            raise refuse(
                f"'{name}' is supported only as {allowed}", where=where, fix="Leave it out."
            )
