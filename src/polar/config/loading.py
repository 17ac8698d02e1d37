"""Reads a config file with overrides into a settings model, and tells all that is wrong at once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from polar.config.documents import parse_value, read_document
from polar.config.environment import environment
from polar.config.run import RunConfig, installed_in, specialised
from polar.errors import ConfigError
from polar.tasks.problems import problems_in

__all__ = ["load_config", "parse_config", "write_config"]

ModelT = TypeVar("ModelT", bound=BaseModel)


def load_config(path: Path | None, overrides: Sequence[str], model: type[ModelT]) -> ModelT:
    """Read a config.

    Args:
        path: A YAML, TOML or JSON file; absent: defaults and overrides alone.
        overrides: Settings that win over the file's, `train.lr=1e-5`; the value is read as YAML.
        model: What the config must be.

    Raises:
        ConfigError: Names the file and every key that is unknown, missing or wrong.
    """
    data = read_document(path) if path is not None else {}
    where = str(path) if path is not None else "the flags"
    return parse_config(data, model, where=where, overrides=overrides)


def parse_config(
    data: Mapping[str, Any], model: type[ModelT], *, where: str, overrides: Sequence[str] = ()
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
    for override in overrides:
        _set(plain, override)
    if unfit := [*_unfit(plain, "")]:
        raise _refusal(unfit, where)
    _move(plain)
    exact = cast(type[ModelT], _run_config(plain, where)) if model is RunConfig else model
    try:
        # As JSON, because strict models take a list for a tuple and a text for a path only there.
        return exact.model_validate_json(json.dumps(plain))
    except ValidationError as error:
        raise _refusal([str(each) for each in problems_in(error, exact)], where) from error


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


def _run_config(data: dict[str, Any], where: str) -> type[RunConfig]:
    try:
        installed_in(environment().cache, data)
        return specialised(data)
    except ConfigError as error:
        raise ConfigError(error.what, where=where, fix=error.fix) from error


def _unfit(value: object, place: str) -> Iterator[str]:
    """Name the values that neither a setting nor a file of settings can hold."""
    match value:
        case dict():
            for key, inner in value.items():
                if not _encodable(key):
                    yield f"a key in `{place}` has half a surrogate pair. Write the whole pair."
                    continue
                yield from _unfit(inner, f"{place}.{key}" if place else key)
        case list():
            for index, inner in enumerate(value):
                yield from _unfit(inner, f"{place}[{index}]")
        case float() if not math.isfinite(value):
            yield f"`{place}` is {value}. It should be a finite number."
        case str() if not _encodable(value):
            yield f"`{place}` has half a surrogate pair. Write the whole pair."


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


def _set(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(
            f"`{override}` does not set anything",
            where="--set",
            fix="Write KEY=VALUE: train.lr=1e-5.",
        )
    *parents, last = key.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                f"`{parent}` has the value {inner!r}, so nothing can be set in it",
                where=f"--set {override}",
                fix="Set a key that holds other keys.",
            )
        data = inner
    data[last] = parse_value(text)


def _refusal(problems: Iterable[str], where: str) -> ConfigError:
    first, *others = problems
    if not others:
        what, _, fix = first.partition(". ")
        return ConfigError(what, where=where, fix=fix)
    listed = "\n".join(f"  {problem}" for problem in (first, *others))
    return ConfigError(
        f"{1 + len(others)} settings are wrong", where=where, fix=f"Correct these:\n{listed}"
    )
