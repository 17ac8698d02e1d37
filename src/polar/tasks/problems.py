"""Says in plain words what is wrong with a value that a settings model refused."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

__all__ = ["Problem", "nearest", "problems_in"]

_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and what to do about it."""

    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}. {self.fix}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that is most like `name`, or list them all.

    Returns:
        An imperative sentence.
    """
    names = sorted(known)
    match = difflib.get_close_matches(name, names, n=1)
    if match:
        return f"Did you mean `{match[0]}`?"
    return f"Use one of: {', '.join(names)}."


def problems_in(error: ValidationError, model: type[BaseModel]) -> tuple[Problem, ...]:
    """Translate each complaint of pydantic.

    Args:
        error: What validating against `model` raised.
        model: The outermost model, to find the keys that are known where one is not.
    """
    return tuple(_problem(detail, model) for detail in error.errors(include_url=False))


def _problem(detail: ErrorDetails, model: type[BaseModel]) -> Problem:
    loc = detail["loc"]
    if detail["type"] == "extra_forbidden":
        key = str(loc[-1])
        return Problem(f"unknown key `{_dotted(loc)}`", nearest(key, _keys_at(model, loc[:-1])))
    if detail["type"] == "missing":
        return Problem(f"the key `{_dotted(loc)}` is missing", "Add it.")
    if detail["type"] == "value_error":
        what, _, fix = detail["msg"].removeprefix("Value error, ").partition("; ")
        place = f"`{_dotted(loc)}`: " if loc else ""
        return Problem(f"{place}{what}", f"{fix[:1].upper()}{fix[1:]}." if fix else "Correct it.")
    shown = repr(detail["input"])
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[:_SHOWN_CHARS]}..."
    wanted = detail["msg"].removeprefix("Input ")
    return Problem(f"`{_dotted(loc)}` is {shown}", f"It {wanted}.")


def _dotted(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        if part == "[key]":
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the line"


def _keys_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, ...]:
    for part in loc:
        if isinstance(part, str):
            model = _inner_model(model.model_fields[part].annotation) or model
    return tuple(model.model_fields)


def _inner_model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = getattr(annotation, "__args__", ())
    return next((found for found in map(_inner_model, inner) if found is not None), None)
