"""Says in plain words what is wrong with a value that a settings model refused."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

__all__ = ["Problem", "Refused", "nearest", "problems_in"]

_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and what to do about it."""

    what: str
    fix: str
    places: tuple[str, ...] = ()
    """The keys it is about, `train.lr`; a section's where it is about several of its keys."""

    def __str__(self) -> str:
        return f"{self.what}. {self.fix}"


class Refused(ValueError):
    """What a validator raises to say not only what is wrong, but what to do about it.

    Args:
        what: What is wrong, without a full stop.
        fix: What to do about it, an imperative sentence.
        keys: The keys it is about, in the model that the validator is of; none: it as a whole.
    """

    def __init__(self, what: str, *, fix: str, keys: tuple[str, ...] = ()) -> None:
        self.problem = Problem(what, fix, keys)
        super().__init__(what)


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that is most like `name`, or list them all.

    Returns:
        An imperative sentence.
    """
    names = sorted(known)
    close = _closest(name, names)
    return f"Did you mean `{close}`?" if close else f"Use one of: {', '.join(names)}."


def problems_in(error: ValidationError, model: type[BaseModel]) -> tuple[Problem, ...]:
    """Translate the complaints of pydantic; a key that is missing by a slip is told once.

    Args:
        error: What validating against `model` raised.
        model: The outermost model, to find the keys that are known where one is not.
    """
    details = error.errors(include_url=False)
    misspelt = {
        (*loc[:-1], _closest(str(loc[-1]), _keys_at(model, loc[:-1])))
        for loc in (each["loc"] for each in details if each["type"] == "extra_forbidden")
    }
    told = (each for each in details if each["type"] != "missing" or each["loc"] not in misspelt)
    grouped = groupby(told, key=lambda each: _place(model, each["loc"]))
    return tuple(_merged([_problem(each, model) for each in group]) for _, group in grouped)


def _closest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)


def _merged(problems: Sequence[Problem]) -> Problem:
    """Make one problem of what each type that a value may have says of it."""
    first, *others = problems
    if not others:
        return first
    also = (f", or {each.fix[0].lower()}{each.fix[1:].removesuffix('.')}" for each in others)
    fix = f"{first.fix.removesuffix('.')}{''.join(also)}."
    return Problem(first.what, fix, first.places)


def _place(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Leave out which of the types of a value it is that complains."""
    for number, part in enumerate(loc[:-1]):
        field = model.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:
            if _is_choice(field.annotation):
                return loc[: number + 1]
            model = _inner_model(field.annotation) or model
    return loc


def _is_choice(annotation: object) -> bool:
    """Tell whether there are several types for one value, none of which has parts."""
    types = [each for each in get_args(annotation) if each is not NoneType]
    ends = (get_origin(each) in (Annotated, Literal, None) for each in types)
    union = get_origin(annotation) in (Union, UnionType) and _inner_model(annotation) is None
    return union and len(types) > 1 and all(ends)


def _problem(detail: ErrorDetails, model: type[BaseModel]) -> Problem:
    problem = _worded(detail, model)
    place = _dotted(_place(model, detail["loc"]))
    keys = problem.places or ("",)
    return replace(problem, places=tuple(".".join(filter(None, (place, key))) for key in keys))


def _worded(detail: ErrorDetails, model: type[BaseModel]) -> Problem:
    loc = _place(model, detail["loc"])
    place, shown = _dotted(loc), _shown(detail["input"])
    match detail["type"]:
        case "extra_forbidden":
            known = _keys_at(model, loc[:-1])
            return Problem(f"unknown key `{place}`", nearest(str(loc[-1]), known))
        case "missing":
            return Problem(f"the key `{place}` is missing", "Add it.")
        case "model_type":
            keys = ", ".join(_keys_at(model, loc))
            what = f"`{place}` is {shown}" if place else f"{shown} is not an object"
            return Problem(what, f"Write an object with the keys: {keys}.")
        case "value_error":
            return _from_validator(detail["ctx"]["error"], place)
    wanted = detail["msg"].removeprefix("Input ")
    return Problem(f"`{place}` is {shown}", f"It {wanted}.")


def _from_validator(error: ValueError, place: str) -> Problem:
    prefix = f"`{place}`: " if place else ""
    if isinstance(error, Refused):
        return replace(error.problem, what=f"{prefix}{error.problem.what}")
    return Problem(f"{prefix}{error}", "Correct it.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _dotted(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        if part == "[key]":
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _keys_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, ...]:
    """List the keys of the model that is found at a place inside another one."""
    for part in loc:
        field = model.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:  # else a place in a list, or a key that the user chose
            model = _inner_model(field.annotation) or model
    return tuple(model.model_fields)


def _inner_model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = getattr(annotation, "__args__", ())
    return next((found for found in map(_inner_model, inner) if found is not None), None)
