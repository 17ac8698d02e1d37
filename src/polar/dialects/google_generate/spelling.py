"""Google's JSON: every field may be written in camelCase or in snake_case.

Fields are read, and refused, under their camelCase names. What a user of the API made (schemas
in JSON form, arguments and results of functions) is never renamed.
"""

from __future__ import annotations

import re
from typing import Any

from polar.dialects.fields import Fields, refuse

__all__ = ["camel_case", "child", "children", "spelled", "whole_number"]

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


def children(fields: Fields, name: str, *, start: int = 0) -> list[Fields]:
    """Read an array of objects, from one on; like Google's parser, take one object for such."""
    if isinstance(value := fields.raw(name), dict):
        return [spelled(Fields.of(value, fields.path(name)))][start:]
    return [spelled(found) for found in fields.objects(name, start=start)]


def whole_number(fields: Fields, name: str, *, least: int | None = None) -> int | None:
    """Read an integer that may be written like 40.0; None if absent."""
    value = fields.raw(name)
    if isinstance(value, float) and value.is_integer():
        fields = Fields({name: int(value)}, fields.where)
    return fields.integer(name, least=least)
