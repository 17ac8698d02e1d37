"""Reads the functions that a generateContent request declares."""

from __future__ import annotations

from typing import Any

from polar.dialects.choice import forced_call
from polar.dialects.fields import Fields, refuse
from polar.dialects.google_generate.spelling import camel_case, child, children
from polar.types import Forced, ToolSpec

__all__ = ["read_tools"]

_FUNCTIONS = "functionDeclarations"

_DECLARATION = frozenset({"description", "name", "parameters", "parametersJsonSchema"})
_RESULTS = frozenset({"response", "responseJsonSchema"})
"""Schemas of what a function returns: no chat template has a place for them."""

_TYPES = frozenset({"ARRAY", "BOOLEAN", "INTEGER", "NULL", "NUMBER", "OBJECT", "STRING"})
_SCHEMA = frozenset({"additionalProperties", "items", "not"})
_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED_SCHEMAS = frozenset({"$defs", "definitions", "defs", "patternProperties", "properties"})
"""Where schemas lie in a schema: one, a list of them, and under names of the user's own."""


_CHOICE = "functionCallingConfig"


def read_tools(request: Fields) -> tuple[tuple[ToolSpec, ...], Forced | None]:
    """Read all functions, none if the request wants no calls, and what is to be called of them."""
    tools = tuple(
        _declaration(declaration)
        for tool in children(request, "tools")
        for declaration in _declarations(tool)
    )
    calling = _calling(request)
    if calling is None:
        return tools, None
    allowed = calling.strings("allowedFunctionNames") or None
    if calling.text("mode") == "ANY":
        where = f"toolConfig.{_CHOICE}"
        return tools, forced_call(tools, allowed, where=where)
    return () if calling.text("mode") == "NONE" else tools, None


def _declarations(tool: Fields) -> list[Fields]:
    for name in tool:
        if name != _FUNCTIONS:
            raise refuse(
                f"the tool '{name}' is not supported: only {_FUNCTIONS}", where=tool.path(name)
            )
    return children(tool, _FUNCTIONS)


def _declaration(fields: Fields) -> ToolSpec:
    blocking = {"behavior": ("BLOCKING", "UNSPECIFIED")}
    fields.refuse_others(_DECLARATION, without_effect=_RESULTS, only=blocking)
    return ToolSpec(
        name=fields.required_text("name"),
        description=fields.text("description") or "",
        parameters=_parameters(fields),
    )


def _parameters(fields: Fields) -> dict[str, Any]:
    """Read the schema of the arguments, which comes in one of two forms."""
    openapi, plain = fields.raw("parameters"), fields.raw("parametersJsonSchema")
    if openapi is not None and plain is not None:
        raise refuse(
            "only one of 'parameters' and 'parametersJsonSchema' may be given",
            where=fields.path("parametersJsonSchema"),
        )
    name, schema = ("parameters", openapi) if plain is None else ("parametersJsonSchema", plain)
    if schema is None:
        return {}
    if not isinstance(schema, dict):
        raise refuse("expected an object", where=fields.path(name))
    return schema if plain is not None else _json_schema(schema)


def _json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Turn Google's schema (OpenAPI's form, types in upper case) into JSON schema."""
    named = ((camel_case(name), value) for name, value in schema.items())
    return {name: _keyword(name, value) for name, value in named}


def _keyword(name: str, value: Any) -> Any:
    match value:
        case str() if name == "type" and value in _TYPES:
            return value.lower()
        case dict() if name in _SCHEMA:
            return _json_schema(value)
        case dict() if name in _NAMED_SCHEMAS:
            return {key: _keyword("items", schema) for key, schema in value.items()}
        case list() if name in _SCHEMAS:
            return [_keyword("items", schema) for schema in value]
        case _:
            return value


def _calling(request: Fields) -> Fields | None:
    """Read how functions are to be called; only where one has to be, which of them."""
    config = child(request, "toolConfig")
    if config is None:
        return None
    config.refuse_others({_CHOICE}, only={"includeServerSideToolInvocations": (False,)})
    calling = child(config, _CHOICE)
    if calling is None:
        return None
    only: dict[str, tuple[Any, ...]] = {
        "mode": ("ANY", "AUTO", "NONE", "MODE_UNSPECIFIED"),
        "streamFunctionCallArguments": (False,),
    }
    named = "allowedFunctionNames"
    if calling.raw("mode") != "ANY":
        only[named] = ([],)
    calling.refuse_others({named} - only.keys(), only=only)
    return calling
