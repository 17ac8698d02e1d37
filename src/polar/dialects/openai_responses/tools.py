"""Reads the tools that a request declares, and translates their names and inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import orjson

from polar.dialects.choice import check_all_allowed, forced_call
from polar.dialects.fields import Fields, refuse
from polar.types import Forced, ToolSpec

__all__ = [
    "chosen_call",
    "input_of",
    "model_name",
    "offered_tools",
    "own_name",
    "with_input",
    "write_tools",
]

_LEFT_OUT = frozenset(
    {
        "image_generation",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Tools that run at the provider and that harnesses declare as an extra, whatever the model.

The model is not told of them, for nobody here could answer the call. Other tools of a
provider's own (`file_search`, `code_interpreter`, `mcp`, `local_shell`, ...) are what a harness
relies on, so they are refused by name.
"""

_FIELDS = {
    "function": frozenset({"type", "name", "description", "parameters"}),
    "custom": frozenset({"type", "name", "description", "format"}),
}
_WITHOUT_EFFECT = frozenset({"defer_loading", "output_schema", "strict"})
"""Promises about arguments and results, which are left to the model and the tool; and whether a
search has to find the tool first, for which there is none here: it is offered at once."""
_ONLY: dict[str, tuple[Any, ...]] = {"allowed_callers": (["direct"],), "async": (False,)}

_FREEFORM_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def offered_tools(declarations: Iterable[Fields]) -> tuple[ToolSpec, ...]:
    """Read tools from the objects that have them as `tools`.

    A tool that is declared again replaces its earlier declaration.

    Raises:
        BadRequest: A tool is of a kind that cannot be offered, or two tools would have the same
            name for the model.
    """
    found: dict[str, ToolSpec] = {}
    for declaration in declarations:
        for fields in declaration.objects("tools"):
            for tool in _read(fields):
                other = found.get(tool.name)
                if other is not None and other.namespace != tool.namespace:
                    raise refuse(
                        f"two tools have the name '{tool.name}'",
                        where=fields.where,
                        fix="Rename one of them or its namespace.",
                    )
                found[tool.name] = tool
    return tuple(found.values())


def chosen_call(choice: Fields, tools: tuple[ToolSpec, ...]) -> Forced | None:
    """Read a choice by names: one tool, or those that are allowed.

    Raises:
        BadRequest: There is no such tool, or some of several are allowed.
    """
    if choice.raw("type") != "allowed_tools":
        return forced_call(tools, [_named(choice)], where="tool_choice")
    choice.refuse_others({"type", "mode", "tools"})
    names = [_named(tool) for tool in choice.objects("tools")]
    mode, where = choice.required_text("mode"), choice.path("tools")
    if mode not in ("auto", "required"):
        raise refuse("expected 'auto' or 'required'", where=choice.path("mode"))
    if mode == "required":
        return forced_call(tools, names, where=where)
    check_all_allowed(tools, names, where=where)
    return None


def _named(fields: Fields) -> str:
    """Read which function or freeform tool an object names, as the model knows it."""
    kind = fields.required_text("type")
    if kind not in ("function", "custom"):
        raise refuse(f"tools of type '{kind}' are not supported", where=fields.path("type"))
    fields.refuse_others({"type", "name", "namespace"})
    return model_name(fields.required_text("name"), fields.text("namespace"))


def model_name(name: str, namespace: str | None) -> str:
    """Make the name by which the model knows a tool: the namespace goes before it."""
    return name if namespace is None else f"{namespace}__{name}"


def own_name(tool: ToolSpec) -> str:
    """Tell the name by which the harness knows a tool within its namespace."""
    return tool.name if tool.namespace is None else tool.name[len(tool.namespace) + 2 :]


def with_input(text: str) -> str:
    """Make the arguments of a freeform tool from the text that is its input."""
    return orjson.dumps({"input": text}).decode()


def input_of(arguments: str) -> str | None:
    """Take a freeform tool's input out of the arguments; None where they are not of that form."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    if isinstance(value, dict) and value.keys() == {"input"} and isinstance(value["input"], str):
        return value["input"]
    return None


def write_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Write tools as the harness declared them, descriptions as the model was given them."""
    written: list[dict[str, Any]] = []
    namespaces: dict[str, list[dict[str, Any]]] = {}
    for tool in tools:
        within = written
        if tool.namespace is not None:
            if (known := namespaces.get(tool.namespace)) is None:
                known = namespaces[tool.namespace] = []
                written.append(_namespace_fields(tool.namespace, known))
            within = known
        within.append(_tool_fields(tool))
    return written


def _read(fields: Fields) -> list[ToolSpec]:
    kind = fields.required_text("type")
    if kind in _LEFT_OUT:
        return []
    if kind == "namespace":
        return _namespace(fields)
    return [_callable(fields)]


def _namespace(fields: Fields) -> list[ToolSpec]:
    """Read the tools of a namespace; the first one's description tells about all of them."""
    fields.refuse_others({"type", "name", "description", "tools"})
    name = fields.required_text("name")
    about = fields.text("description")
    tools = [_callable(nested, namespace=name) for nested in fields.objects("tools")]
    if about and tools:
        description = f"About all tools {name}__*: {about}\n\n{tools[0].description}".rstrip()
        tools[0] = replace(tools[0], description=description)
    return tools


def _callable(fields: Fields, *, namespace: str | None = None) -> ToolSpec:
    """Read a function or a freeform tool.

    `strict`, like every promise about the form of arguments, is left to the model: nothing
    here constrains what it samples.
    """
    kind = fields.required_text("type")
    if kind not in ("function", "custom"):
        raise refuse(f"tools of type '{kind}' are not supported", where=fields.path("type"))
    fields.refuse_others(_FIELDS[kind], without_effect=_WITHOUT_EFFECT, only=_ONLY)
    freeform = kind == "custom"
    return ToolSpec(
        name=model_name(fields.required_text("name"), namespace),
        description=_freeform_description(fields) if freeform else fields.text("description") or "",
        parameters=_FREEFORM_PARAMETERS if freeform else _parameters(fields),
        freeform=freeform,
        namespace=namespace,
    )


def _parameters(fields: Fields) -> dict[str, Any]:
    value = fields.raw("parameters")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise refuse("expected an object", where=fields.path("parameters"))
    return value


def _freeform_description(fields: Fields) -> str:
    """Read a freeform tool's description; the grammar of its input is told, not enforced."""
    description = fields.text("description") or ""
    form = fields.object("format")
    if form is None:
        return description
    form.refuse_others({"type", "syntax", "definition"})
    if form.raw("type") == "text":
        return description
    if form.raw("type") != "grammar":
        raise refuse("expected the type 'text' or 'grammar'", where=form.path("type"))
    syntax = form.required_text("syntax")
    if syntax not in ("lark", "regex"):
        raise refuse("expected the syntax 'lark' or 'regex'", where=form.path("syntax"))
    grammar = form.required_text("definition")
    return f"{description}\n\nThe input must match this {syntax} grammar:\n{grammar}".lstrip()


def _namespace_fields(name: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "", "tools": tools}


def _tool_fields(tool: ToolSpec) -> dict[str, Any]:
    fields = {"name": own_name(tool), "description": tool.description}
    if tool.freeform:
        return {"type": "custom", **fields, "format": {"type": "text"}}
    return {"type": "function", **fields, "parameters": dict(tool.parameters), "strict": False}
