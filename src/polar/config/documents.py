"""Reads YAML, TOML and JSON documents into plain data, strictly."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from polar.errors import ConfigError

__all__ = ["SUFFIXES", "parse_value", "read_document"]

SUFFIXES = (".yaml", ".yml", ".toml", ".json")
"""How the names of config files end."""
_MOST_VALUES = 100_000
"""A few lines of YAML can name each other to billions of values, which would fill the memory."""


class _Loader(yaml.SafeLoader):
    """YAML whose numbers are those of YAML 1.2, without dates, and without doubled keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is a list or an object, not a name", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key `{key.value}` is there twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def read_document(path: Path) -> dict[str, Any]:
    """Read a file by its suffix; an empty file is an empty object.

    Raises:
        ConfigError: It cannot be read, is of an unknown kind, or is not an object.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"a config file ends in {', '.join(SUFFIXES)}, not in '{path.suffix}'",
            where=str(path),
            fix="Rename it, or name another file.",
        )
    data = _parse(path, _read_text(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"the file holds a {type(data).__name__}, not an object with keys",
            where=str(path),
            fix="Write `key: value` lines; docs/configuration.md lists the keys.",
        )
    return data


def parse_value(text: str) -> object:
    """Read one value as YAML writes it: `1e-5`, `true`, `null`, `[a, b]`, or plain text.

    Raises:
        ConfigError: It is not a value.
    """
    try:
        return _load_yaml(text)
    except RecursionError as error:
        raise ConfigError("the value is nested too deeply", where="--set") from error
    except (yaml.YAMLError, ValueError) as error:
        what = getattr(error, "problem", None) or _first_line(error)
        raise ConfigError(
            f"`{text}` is not a value: {what}",
            where="--set",
            fix="Write it as YAML does: 1e-5, true, null, [a, b], or a text in quotes.",
        ) from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(
            "there is no such config file", where=str(path), fix="Check the path."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"the config file cannot be read: {error.strerror}",
            where=str(path),
            fix="Check the path and its permissions.",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the config file is not UTF-8 at byte {error.start + 1}",
            where=str(path),
            fix="Save it as UTF-8.",
        ) from error


def _parse(path: Path, text: str) -> object:
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix == ".json":
            return json.loads(text, object_pairs_hook=_unique_keys)
        return _load_yaml(text)
    except RecursionError as error:
        raise ConfigError(
            "the file is nested too deeply", where=str(path), fix="Correct it."
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ConfigError(
            f"the file is not valid YAML: {error.problem}", where=where, fix="Correct it."
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(
            f"the file is not valid {path.suffix[1:].upper()}: {_first_line(error)}",
            where=str(path),
            fix="Correct it.",
        ) from error


def _load_yaml(text: str) -> object:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count(node, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Count the values that a node stands for, those it names by alias each time anew.

    Raises:
        ConstructorError: It holds itself, or more than a config can need.
    """
    count = known.get(id(node), 0)
    if count is None:
        raise yaml.constructor.ConstructorError(None, None, "a value holds itself", node.start_mark)
    if count:
        return count
    known[id(node)] = None
    count = 1 + sum(_count(child, known) for child in _children(node))
    if count > _MOST_VALUES:
        raise yaml.constructor.ConstructorError(
            None, None, f"there are more than {_MOST_VALUES} values", node.start_mark
        )
    known[id(node)] = count
    return count


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key `{key}` is there twice")
        found[key] = value
    return found


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
