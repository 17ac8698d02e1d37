"""Writes the reference of all settings from the docstrings under the fields of the models."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from polar.config.families import DEFAULT_NAMES, own_names, settings_model
from polar.config.run import RunConfig
from polar.gateway import interceptors

__all__ = ["field_docs", "reference", "run_reference"]


def run_reference() -> str:
    """Write the reference of a run's config, as Markdown."""
    sections: dict[str, type[BaseModel]] = {"": RunConfig}
    for name, field in RunConfig.model_fields.items():
        if name in DEFAULT_NAMES:
            models = {choice: settings_model(name, choice) for choice in own_names(name)}
            sections |= {f"{name}.settings` of `{choice}": one for choice, one in models.items()}
            for one in models.values():
                sections |= {f"{name}.settings.{key}": inner for key, inner in _inner_models(one)}
        elif (model := _model_of(field.annotation)) is not None:
            sections[name] = model
            sections |= {f"{name}.{key}": inner for key, inner in _inner_models(model)}
    for name in interceptors.own_names():
        sections[f"gateway.interceptors.settings` of `{name}"] = interceptors.settings_model(name)
    return reference(sections)


def reference(models: Mapping[str, type[BaseModel]]) -> str:
    """Write a table for each settings model.

    Args:
        models: Dotted key of the section -> its model; the empty key is the document itself.

    Returns:
        Markdown; models without fields are left out.
    """
    return "\n".join(_section(key, model) for key, model in models.items() if model.model_fields)


@cache
def field_docs(model: type[BaseModel]) -> Mapping[str, str]:
    """Read the docstring under each field, in one line.

    Raises:
        ValueError: A field has none.
    """
    docs: dict[str, str] = {}
    for parent in reversed(model.__mro__):
        if issubclass(parent, BaseModel) and parent is not BaseModel:
            docs |= _docs_in(parent)
    missing = [name for name in model.model_fields if name not in docs]
    if missing:
        raise ValueError(f"{model.__name__} does not say what it means: {', '.join(missing)}")
    return docs


def _section(key: str, model: type[BaseModel]) -> str:
    title = f"## `{key}`" if key else "## The document"
    summary = " ".join(inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].split())
    rows = [
        f"| `{name}` | {_type(field.annotation)} | {_default(field)} | {_cell(docs)} |"
        for name, field, docs in _fields(model)
    ]
    head = ["| key | value | default | meaning |", "|---|---|---|---|"]
    return "\n".join([title, "", summary, "", *head, *rows, ""])


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo, str]]:
    docs = field_docs(model)
    return ((name, field, docs[name]) for name, field in model.model_fields.items())


def _docs_in(model: type[BaseModel]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        match field, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found


def _inner_models(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        inner = _model_of(field.annotation)
        if inner is not None:
            yield name, inner


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_model_of, get_args(annotation)) if found), None)


def _type(annotation: Any) -> str:
    """Name a type as a user of YAML would."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inner[0])
    if origin in (Literal, Union, types.UnionType):
        return " or ".join(_choice(each) for each in inner)
    if origin in (tuple, list) and (origin is list or inner[-1] is Ellipsis):
        return f"list of {_type(inner[0])}"
    if origin is tuple:
        return f"[{', '.join(_type(each) for each in inner)}]"
    if origin is dict:
        return f"object of {_type(inner[1])}"
    return _plain_type(annotation)


def _choice(value: Any) -> str:
    if value is type(None):
        return "null"
    return f"`{value}`" if isinstance(value, str) else _type(value)


def _plain_type(annotation: Any) -> str:
    if _model_of(annotation) is not None:
        return "object"
    return {
        Any: "anything",
        bool: "true or false",
        int: "integer",
        float: "number",
        Path: "path",
    }.get(annotation, "text")


def _default(field: FieldInfo) -> str:
    if _model_of(field.annotation) is not None and field.default is not None:
        return ""
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined
    return f"`{json.dumps(to_jsonable_python(value), ensure_ascii=False)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
