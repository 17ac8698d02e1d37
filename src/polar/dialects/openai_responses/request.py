"""Reads Responses requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from polar.dialects.choice import forced_call
from polar.dialects.earlier import Earlier
from polar.dialects.fields import Fields, parse_object, refuse
from polar.dialects.openai_responses.compaction import ASK
from polar.dialects.openai_responses.items import DECLARES_TOOLS, Said, read_items
from polar.dialects.openai_responses.tools import chosen_call, offered_tools
from polar.types import Chat, Forced, Message, Sampling, ToolSpec

__all__ = ["parse_chat"]

_READ = frozenset(
    {
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "model",
        "parallel_tool_calls",
        "previous_response_id",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_p",
    }
)
_WITHOUT_EFFECT = frozenset(
    {
        "client_metadata",
        "max_tool_calls",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "user",
    }
)
"""Accounting, caching and hints: they ask for nothing that would change what is sampled.

`max_tool_calls` counts calls of the provider's own tools, of which there are none.
"""

_ONLY: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""Fields that are taken only with a value that changes nothing."""

_TOLD = (
    "instructions",
    "max_tool_calls",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "text",
    "tool_choice",
    "user",
)
"""Fields that a response repeats as they were; what was sampled by is told from the request."""

_ABSENT: dict[str, dict[str, Any]] = {
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}},
}

_LOGPROBS = "message.output_text.logprobs"


def parse_chat(body: bytes, params: Mapping[str, str], earlier: Earlier[Said]) -> Chat:
    """Read a request, but for what an earlier one had.

    Args:
        body: The request's body.
        params: What the path says: `counts` where only the prompt's length is asked for, which
            needs no model's name, `compacts` where the conversation is to be summarised.
        earlier: What was read of the session's requests.

    Raises:
        BadRequest: Not valid, or asks for something unsupported; names the field.
    """
    fields = parse_object(body)
    _refuse_unsupported(fields)
    model = fields.text("model") if "counts" in params else fields.required_text("model")
    instructions = fields.text("instructions")
    messages = _messages(fields, earlier)
    if not messages and fields.text("previous_response_id") is None:
        raise refuse("at least one message is required", where="input")
    system = () if instructions is None else (Message("system", instructions),)
    compacts = _compacts(messages, params)
    tools, forced = _tools(fields)
    if compacts and forced:
        raise refuse("a summary is no call of a tool", where="tool_choice")
    return Chat(
        model=model or "",
        messages=(*system, *messages, *((ASK,) if compacts == "conversation" else ())),
        tools=tools,
        sampling=_sampling(fields),
        stream=fields.flag("stream") and compacts != "conversation",
        parallel_tool_calls=fields.flag("parallel_tool_calls", absent=True),
        forced=forced,
        continues=fields.text("previous_response_id"),
        stored=fields.flag("store", absent=True) and compacts is None,
        instructed=bool(system),
        told=_told(fields),
        compacts=compacts,
    )


def _told(fields: Fields) -> dict[str, Any]:
    """Read what a response repeats, with what is left out of a request's `text` and `reasoning`."""
    fields.object("metadata")
    told = {name: fields.raw(name) for name in _TOLD if fields.raw(name) is not None}
    for name, absent in _ABSENT.items():
        if fields.object(name) is not None:
            told[name] = absent | told[name]
    return told


def _compacts(
    messages: tuple[Message, ...], params: Mapping[str, str]
) -> Literal["reply", "conversation"] | None:
    """Tell whether a summary is asked for: by the path, or by the last item."""
    if ASK in messages[:-1]:
        raise refuse("'compaction_trigger' must be the last item", where="input")
    if "compacts" in params:
        return "conversation"
    return "reply" if messages[-1:] == (ASK,) else None


def _refuse_unsupported(fields: Fields) -> None:
    fields.refuse_others(_READ, without_effect=_WITHOUT_EFFECT, only=_ONLY)
    _refuse_logprobs(fields)
    text, options = fields.object("text"), fields.object("stream_options")
    if options is not None:
        options.refuse_others({"include_obfuscation", "include_usage"})
    if text is None:
        return
    text.refuse_others({"format", "verbosity"})
    form = text.object("format")
    if form is not None and form.raw("type") != "text":
        raise refuse("only text of the type 'text' is supported", where="text.format.type")


def _refuse_logprobs(fields: Fields) -> None:
    """What else can be included is about items that no reply has, or is given as null."""
    for number, name in enumerate(fields.items("include")):
        if name == _LOGPROBS or not isinstance(name, str):
            raise refuse(f"{name!r} cannot be included", where=f"include[{number}]")


def _messages(fields: Fields, earlier: Earlier[Said]) -> tuple[Message, ...]:
    text = fields.raw("input")
    return (Message("user", text),) if isinstance(text, str) else read_items(fields, earlier)


def _declarations(fields: Fields) -> Iterator[Fields]:
    """Find the items that declare tools."""
    items = fields.raw("input")
    for number, item in enumerate(() if isinstance(items, str) else fields.items("input")):
        if item.get("type") == DECLARES_TOOLS:
            yield Fields(item, f"{fields.path('input')}[{number}]")


def _tools(fields: Fields) -> tuple[tuple[ToolSpec, ...], Forced | None]:
    """Read the tools of the request and of its items that the model may call, and has to."""
    tools = offered_tools([fields, *_declarations(fields)])
    match choice := fields.raw("tool_choice"):
        case None | "auto":
            return tools, None
        case "none":
            return (), None
        case "required":
            return tools, forced_call(tools, None, where="tool_choice")
        case str():
            raise refuse(f"the tool choice '{choice}' is not known", where="tool_choice")
        case _:
            return tools, chosen_call(Fields.of(choice, "tool_choice"), tools)


def _sampling(fields: Fields) -> Sampling:
    temperature = fields.number("temperature", least=0, most=2)
    top_p = fields.number("top_p", least=0, most=1)
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        max_tokens=fields.integer("max_output_tokens", least=1),
    )
