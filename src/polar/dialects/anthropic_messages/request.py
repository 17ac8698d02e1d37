"""Reads Messages requests."""

from __future__ import annotations

from typing import Any

from polar.dialects.anthropic_messages.messages import (
    Said,
    read_messages,
    read_text,
)
from polar.dialects.choice import forced_call
from polar.dialects.earlier import Earlier
from polar.dialects.fields import Fields, parse_object, refuse
from polar.types import Chat, Forced, Message, Sampling, ToolSpec

__all__ = ["parse_chat"]

_READ = frozenset(
    {
        "context_management",
        "max_tokens",
        "messages",
        "model",
        "output_config",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    }
)
_WITHOUT_EFFECT = frozenset(
    {
        "cache_control",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
    }
)
"""Accounting, caching and hints: they ask for nothing that would change what is sampled."""

_THINKING = ("adaptive", "disabled", "enabled")
"""Hints: whether the model reasons is for its chat template and for itself to decide."""

_TOOL_FIELDS = (
    "type",
    "name",
    "description",
    "input_schema",
    "defer_loading",
    "cache_control",
    "eager_input_streaming",
)
_TOOL_ONLY: dict[str, tuple[Any, ...]] = {
    "strict": (False,),
    "input_examples": ([],),
    "allowed_callers": (["direct"],),
}
"""Fields of tools that are taken only with a value that changes nothing."""

_KEEP_ALL: tuple[Any, ...] = ("all", {"type": "all"})


def parse_chat(body: bytes, earlier: Earlier[Said], *, counts: bool = False) -> Chat:
    """Read a request, but for what an earlier one had.

    Args:
        body: The request's body.
        earlier: What was read of the session's requests.
        counts: Whether only the prompt is to be counted: no reply, so no limit for one.

    Raises:
        BadRequest: Not valid, or asks for something unsupported; names the field.
    """
    fields = parse_object(body)
    fields.refuse_others(_READ, without_effect=_WITHOUT_EFFECT)
    _check_thinking(fields)
    _check_context_management(fields)
    _check_output_config(fields)
    choice, parallel = _tool_choice(fields)
    said = read_messages(fields, earlier)
    tools = _tools(fields, said)
    return Chat(
        model=fields.required_text("model"),
        messages=_messages(fields, said, counts=counts),
        tools=() if choice == "none" else tools,
        sampling=_sampling(fields, counts=counts),
        stream=fields.flag("stream"),
        include_usage=True,
        parallel_tool_calls=parallel,
        forced=_forced(fields, tools),
    )


def _messages(fields: Fields, said: tuple[Said, ...], *, counts: bool) -> tuple[Message, ...]:
    messages = tuple(turn for each in said for turn in each.turns)
    if messages[-1:] == (Message("assistant", ""),):
        messages = messages[:-1]  # asks for nothing
    if not messages:
        raise refuse("at least one message is required", where="messages")
    if messages[-1].role == "assistant" and not counts:
        raise refuse(
            "the last message is the assistant's, and to continue it is not supported",
            where="messages",
            fix="End in a message of the user.",
        )
    system = read_text(fields, "system")
    return (Message("system", system), *messages) if system else messages


def _tool_choice(fields: Fields) -> tuple[str, bool]:
    """Read whether tools are offered, and whether one reply may call several."""
    choice = fields.object("tool_choice")
    if choice is None:
        return "auto", True
    kind = choice.required_text("type")
    if kind not in ("any", "auto", "none", "tool"):
        raise refuse(f"the tool choice '{kind}' is not known", where=choice.path("type"))
    named = {"name"} if kind == "tool" else set()
    choice.refuse_others({"type", "disable_parallel_tool_use"} | named)
    return kind, not choice.flag("disable_parallel_tool_use")


def _forced(fields: Fields, tools: tuple[ToolSpec, ...]) -> Forced | None:
    """Read what the reply must call, of the tools that the model is to see."""
    choice = fields.object("tool_choice")
    kind = None if choice is None else choice.text("type")
    if choice is None or kind not in ("any", "tool"):
        return None
    allowed = [choice.required_text("name")] if kind == "tool" else None
    return forced_call(tools, allowed, where="tool_choice")


def _tools(fields: Fields, said: tuple[Said, ...]) -> tuple[ToolSpec, ...]:
    """Read the tools that the model is to see; a deferred one only after a result loaded it."""
    loaded = frozenset(name for each in said for name in each.loaded)
    read = [(_tool(tool), tool.flag("defer_loading")) for tool in fields.objects("tools")]
    return tuple(tool for tool, deferred in read if not deferred or tool.name in loaded)


def _tool(fields: Fields) -> ToolSpec:
    kind = fields.text("type")
    if kind not in ("custom", None):
        raise refuse(
            f"tools of type '{kind}' are not supported: only those with an input_schema",
            where=fields.path("type"),
        )
    fields.refuse_others(_TOOL_FIELDS, only=_TOOL_ONLY)
    if fields.object("input_schema") is None:
        raise refuse("a required object is missing", where=fields.path("input_schema"))
    return ToolSpec(
        name=fields.required_text("name"),
        description=fields.text("description") or "",
        parameters=fields.raw("input_schema"),
    )


def _sampling(fields: Fields, *, counts: bool) -> Sampling:
    temperature = fields.number("temperature", least=0, most=1)
    top_p = fields.number("top_p", least=0, most=1)
    max_tokens = fields.integer("max_tokens", least=1)
    if max_tokens is None and not counts:
        raise refuse("a required integer is missing", where="max_tokens")
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=fields.integer("top_k", least=1),
        max_tokens=max_tokens,
        stop=fields.strings("stop_sequences"),
    )


def _check_thinking(fields: Fields) -> None:
    thinking = fields.object("thinking")
    if thinking is None:
        return
    kind = thinking.required_text("type")
    if kind not in _THINKING:
        raise refuse(f"thinking of type '{kind}' is not supported", where=thinking.path("type"))
    thinking.refuse_others({"type", "budget_tokens", "display"})


def _check_context_management(fields: Fields) -> None:
    """Accept only the edit that takes nothing away from the conversation."""
    management = fields.object("context_management")
    if management is None:
        return
    management.refuse_others({"edits"})
    for edit in management.objects("edits"):
        kind = edit.required_text("type")
        if kind != "clear_thinking_20251015":
            raise refuse(f"the edit '{kind}' is not supported", where=edit.path("type"))
        edit.refuse_others({"type", "keep"})
        if edit.raw("keep") not in _KEEP_ALL:
            raise refuse("'keep' is supported only as 'all'", where=edit.path("keep"))


def _check_output_config(fields: Fields) -> None:
    """Accept only the hint how much effort to make; a form of the output cannot be enforced."""
    config = fields.object("output_config")
    if config is not None:
        config.refuse_others({"effort"})
        config.text("effort")
