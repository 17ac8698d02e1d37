"""Reads a config file with overrides into a settings model, and tells all that is wrong at once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from polar.config.documents import read_document
from polar.config.environment import environment
from polar.config.overrides import Overrides, apply_override, origin, parse_override
from polar.config.run import RunConfig, installed_in, specialised
from polar.errors import ConfigError
from polar.tasks.problems import Problem, problems_in

__all__ = ["load_config", "parse_config", "write_config"]

ModelT = TypeVar("ModelT", bound=BaseModel)


def load_config(path: Path | None, overrides: Overrides, model: type[ModelT]) -> ModelT:
    """Read a config.

    Args:
        path: A YAML, TOML or JSON file; absent: defaults and overrides alone.
        overrides: Settings that win over the file's, `train.lr=1e-5`; a text is read as YAML.
        model: What the config must be.

    Raises:
        ConfigError: Names every key that is unknown, missing or wrong, and the file or override.
    """
    data = read_document(path) if path is not None else {}
    where = str(path) if path is not None else "the flags"
    return parse_config(data, model, where=where, overrides=overrides)


def parse_config(
    data: Mapping[str, Any], model: type[ModelT], *, where: str, overrides: Overrides = ()
) -> ModelT:
    """Validate plain data, as `load_config` does.

    Args:
        data: What a JSON document could hold.
        model: What it must be.
        where: Where the data is from, for the error.
        overrides: Settings that win over the data's.

    Raises:
        ConfigError: Names every key that is unknown, missing or wrong.
    """
    plain = json.loads(json.dumps(data, default=str))
    given = [parse_override(each) if isinstance(each, str) else each for each in overrides]
    for override in given:
        apply_override(override, plain)
    moved = {".".join(old): ".".join(new) for old, new in _MOVED.items()}
    origin_of = partial(origin, overrides=given, document=where, moved=moved)
    if unfit := [*_unfit(plain, "")]:
        raise _refusal(unfit, origin_of)
    _move(plain)
    exact = cast(type[ModelT], _run_config(plain, origin_of)) if model is RunConfig else model
    try:
        # As JSON, because strict models take a list for a tuple and a text for a path only there.
        return exact.model_validate_json(json.dumps(plain))
    except ValidationError as error:
        raise _refusal(problems_in(error, exact), origin_of) from error


def write_config(path: Path, config: BaseModel) -> None:
    """Write a config with every default spelt out, as YAML that `load_config` reads back.

    Only its owner can read the file, for it may hold the key of an engine's server.
    """
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.touch(0o600)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _run_config(data: dict[str, Any], origin_of: Callable[[Sequence[str]], str]) -> type[RunConfig]:
    try:
        installed_in(environment().cache, data)
        return specialised(data)
    except ConfigError as error:
        places = () if error.where is None else (error.where,)
        raise ConfigError(error.what, where=origin_of(places), fix=error.fix) from error


def _unfit(value: object, place: str) -> Iterator[Problem]:
    """Name the values that neither a setting nor a file of settings can hold."""
    match value:
        case dict():
            for key, inner in value.items():
                if not _encodable(key):
                    what = f"a key in `{place}` has half a surrogate pair"
                    yield Problem(what, "Write the whole pair.", (place,))
                    continue
                yield from _unfit(inner, f"{place}.{key}" if place else key)
        case list():
            for index, inner in enumerate(value):
                yield from _unfit(inner, f"{place}[{index}]")
        case float() if not math.isfinite(value):
            yield Problem(f"`{place}` is {value}", "It should be a finite number.", (place,))
        case str() if not _encodable(value):
            what = f"`{place}` has half a surrogate pair"
            yield Problem(what, "Write the whole pair.", (place,))


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_MOVED: Mapping[tuple[str, str], tuple[str, str]] = {
    ("rollout", "credit"): ("train", "credit"),
    ("rollout", "discount"): ("train", "discount"),
}
"""Where keys of earlier releases stand now; the config of a run that they wrote has them."""


def _move(data: dict[str, Any]) -> None:
    """Read keys of earlier releases where they stand now, unless they are set there as well."""
    for (section, key), (new_section, new_key) in _MOVED.items():
        old, new = data.get(section), data.get(new_section, {})
        if isinstance(old, dict) and isinstance(new, dict) and key in old and new_key not in new:
            data[new_section] = new | {new_key: old.pop(key)}


def _refusal(problems: Iterable[Problem], origin_of: Callable[[Sequence[str]], str]) -> ConfigError:
    told = [(problem, origin_of(problem.places)) for problem in problems]
    wheres = list(dict.fromkeys(where for _, where in told))
    if len(told) == 1:
        ((problem, where),) = told
        return ConfigError(problem.what, where=where, fix=problem.fix)
    listed = "\n".join(
        f"  {problem}" if len(wheres) == 1 else f"  {problem} (at {where})"
        for problem, where in told
    )
    return ConfigError(
        f"{len(told)} settings are wrong",
        where=", ".join(wheres),
        fix=f"Correct these:\n{listed}",
    )
