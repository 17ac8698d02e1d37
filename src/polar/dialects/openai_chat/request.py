"""Reads Chat Completions requests."""

from __future__ import annotations

from typing import Any

from polar.dialects.choice import check_all_allowed, forced_call
from polar.dialects.earlier import Earlier
from polar.dialects.fields import Fields, parse_object, refuse
from polar.types import Chat, Forced, Message, Role, Sampling, ToolCall, ToolSpec

__all__ = ["parse_chat"]

_READ = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "parallel_tool_calls",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    }
)
_WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Accounting, caching and hints: they ask for nothing that would change what is sampled."""

_ONLY: dict[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
}
"""Fields that are taken only with a value that changes nothing."""

_MOST_CHOICES = 128
"""As many as OpenAI gives."""

_MESSAGE = frozenset(
    {
        "audio",
        "content",
        "function_call",
        "name",
        "reasoning",
        "reasoning_content",
        "refusal",
        "role",
        "tool_call_id",
        "tool_calls",
    }
)
_MESSAGE_WITHOUT_EFFECT = frozenset(
    {
        "annotations",
        "cache_control",
        "extra_content",
        "provider_specific_fields",
        "reasoning_details",
        "thinking_blocks",
    }
)
"""Marks of other providers, and reasoning that is there as text as well."""

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def parse_chat(body: bytes, earlier: Earlier[Message]) -> Chat:
    """Read a request, but for what an earlier one had.

    Raises:
        BadRequest: Not valid, or asks for something unsupported; names the field.
    """
    fields = parse_object(body)
    fields.refuse_others(_READ, without_effect=_WITHOUT_EFFECT, only=_ONLY)
    messages = _messages(fields, earlier)
    if not messages:
        raise refuse("at least one message is required", where="messages")
    options = fields.object("stream_options")
    if options is not None:
        options.refuse_others({"include_usage"}, without_effect={"include_obfuscation"})
    tools, forced = _offered_tools(fields)
    return Chat(
        model=fields.required_text("model"),
        messages=messages,
        tools=tools,
        sampling=_sampling(fields),
        stream=fields.flag("stream"),
        include_usage=options is not None and options.flag("include_usage"),
        parallel_tool_calls=fields.flag("parallel_tool_calls", absent=True),
        choices=fields.integer("n", least=1, most=_MOST_CHOICES) or 1,
        forced=forced,
        calls_flow=True,
    )


def _messages(fields: Fields, earlier: Earlier[Message]) -> tuple[Message, ...]:
    raw = fields.items("messages")
    common, read = earlier.common(raw)
    messages = (*read[:common], *map(_message, fields.objects("messages", start=common)))
    earlier.keep(raw, messages)
    return messages


def _offered_tools(fields: Fields) -> tuple[tuple[ToolSpec, ...], Forced | None]:
    """Read the tools that the model is to see, and what it is to call of them."""
    choice = fields.raw("tool_choice")
    tools = tuple(map(_tool, fields.objects("tools")))
    match choice:
        case None | "auto":
            return tools, None
        case "none":
            return (), None
        case "required":
            return tools, forced_call(tools, None, where="tool_choice")
        case str():
            raise refuse(f"the tool choice '{choice}' is not known", where="tool_choice")
        case _:
            return tools, _chosen(Fields.of(choice, "tool_choice"), tools)


def _chosen(choice: Fields, tools: tuple[ToolSpec, ...]) -> Forced | None:
    """Read a choice by names."""
    kind = choice.required_text("type")
    if kind == "function":
        return forced_call(tools, [_named(choice)], where="tool_choice")
    if kind != "allowed_tools":
        raise refuse(f"the tool choice '{kind}' is not supported", where="tool_choice.type")
    choice.refuse_others({"type", "allowed_tools"})
    allowed = _object(choice, "allowed_tools")
    allowed.refuse_others({"mode", "tools"})
    names = [_named(tool) for tool in allowed.objects("tools")]
    mode, where = allowed.required_text("mode"), allowed.path("tools")
    if mode not in ("auto", "required"):
        raise refuse("expected 'auto' or 'required'", where=allowed.path("mode"))
    if mode == "required":
        return forced_call(tools, names, where=where)
    check_all_allowed(tools, names, where=where)
    return None


def _named(fields: Fields) -> str:
    """Read which function an object names."""
    if fields.raw("type") != "function":
        raise refuse("only tools of type 'function' are supported", where=fields.path("type"))
    fields.refuse_others({"type", "function"})
    function = _object(fields, "function")
    function.refuse_others({"name"})
    return function.required_text("name")


def _object(fields: Fields, name: str) -> Fields:
    found = fields.object(name)
    if found is None:
        raise refuse("a required object is missing", where=fields.path(name))
    return found


def _tool(fields: Fields) -> ToolSpec:
    if fields.raw("type") != "function":
        raise refuse("only tools of type 'function' are supported", where=fields.path("type"))
    fields.refuse_others({"type", "function"}, without_effect={"cache_control"})
    function = _object(fields, "function")
    function.refuse_others({"name", "description", "parameters"}, without_effect={"strict"})
    parameters = function.raw("parameters")
    return ToolSpec(
        name=function.required_text("name"),
        description=function.text("description") or "",
        parameters={} if parameters is None else _plain(function, "parameters", parameters),
    )


def _plain(fields: Fields, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse("expected an object", where=fields.path(name))
    return value


def _sampling(fields: Fields) -> Sampling:
    temperature = fields.number("temperature", least=0, most=2)
    top_p = fields.number("top_p", least=0, most=1)
    limit = fields.integer("max_completion_tokens", least=1)
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=fields.integer("top_k", least=1),
        max_tokens=fields.integer("max_tokens", least=1) if limit is None else limit,
        stop=_stop(fields),
        seed=fields.integer("seed"),
    )


def _stop(fields: Fields) -> tuple[str, ...]:
    """Read stop strings, of which one alone may stand without an array."""
    value = fields.raw("stop")
    if isinstance(value, str):
        fields = Fields({"stop": [value]}, fields.where)
    return fields.strings("stop")


def _message(fields: Fields) -> Message:
    name = fields.required_text("role")
    role = _ROLES.get(name)
    if role is None:
        raise refuse(f"the role '{name}' is not supported", where=fields.path("role"))
    fields.refuse_others(_MESSAGE, without_effect=_MESSAGE_WITHOUT_EFFECT)
    if role != "assistant":
        answers = fields.required_text("tool_call_id") if role == "tool" else None
        content = _content(fields)
        return Message(role, content, tool_call_id=answers, name=fields.text("name"))
    for unsupported in ("function_call", "audio"):
        if fields.raw(unsupported) is not None:
            raise refuse(f"'{unsupported}' is not supported", where=fields.path(unsupported))
    return Message(
        role,
        _content(fields),
        reasoning=fields.text("reasoning_content") or fields.text("reasoning") or None,
        tool_calls=tuple(map(_tool_call, fields.objects("tool_calls"))),
        name=fields.text("name"),
    )


def _content(fields: Fields) -> str:
    """Read text or an array of text parts, joined without anything between, or a refusal."""
    content = fields.raw("content")
    if content in (None, "", []):
        return fields.text("refusal") or ""
    if isinstance(content, str):
        return content
    return "".join(map(_part, fields.objects("content")))


def _part(fields: Fields) -> str:
    kind = fields.required_text("type")
    if kind not in ("text", "refusal"):
        raise refuse(
            f"content of type '{kind}' is not supported: only text", where=fields.path("type")
        )
    fields.refuse_others({"type", kind}, without_effect={"annotations", "cache_control"})
    return fields.required_text(kind)


def _tool_call(fields: Fields) -> ToolCall:
    if fields.raw("type") not in ("function", None):
        raise refuse("only tool calls of type 'function' exist", where=fields.path("type"))
    fields.refuse_others(
        {"id", "type", "function"},
        without_effect={"extra_content", "index", "provider_specific_fields"},
    )
    function = _object(fields, "function")
    return ToolCall(
        id=fields.required_text("id"),
        name=function.required_text("name"),
        arguments=function.text("arguments") or "",
    )
