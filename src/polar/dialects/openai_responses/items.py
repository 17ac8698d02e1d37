"""Reads input items: what was said before, as messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from polar.dialects.earlier import Earlier
from polar.dialects.fields import Fields, refuse
from polar.dialects.openai_responses.compaction import ASK, COMPACTED, TRIGGER, read_summary
from polar.dialects.openai_responses.ids import given_as_it_was, response_of
from polar.dialects.openai_responses.tools import model_name, with_input
from polar.types import Message, Role, ToolCall

__all__ = ["DECLARES_TOOLS", "Said", "read_items"]

DECLARES_TOOLS = "additional_tools"
"""Type of the items that declare tools and say nothing."""

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user"}
_TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
}
"""Type of a content part -> the field that has its text."""


_FIELDS: dict[str, frozenset[str]] = {
    "message": frozenset({"content", "role"}),
    "reasoning": frozenset({"content", "encrypted_content", "summary"}),
    "function_call": frozenset({"arguments", "call_id", "name", "namespace"}),
    "custom_tool_call": frozenset({"call_id", "input", "name", "namespace"}),
    "function_call_output": frozenset({"call_id", "output"}),
    "custom_tool_call_output": frozenset({"call_id", "output"}),
    **dict.fromkeys(COMPACTED, frozenset({"encrypted_content"})),
    TRIGGER: frozenset(),
    DECLARES_TOOLS: frozenset({"role", "tools"}),
}
"""Type of an item -> the fields it has besides its type and id."""
_WITHOUT_EFFECT = frozenset(
    {
        "created_by",
        "internal_chat_message_metadata_passthrough",
        "phase",
        "provider_data",
        "status",
    }
)
"""Marks of who made an item and how far it was; the name of a call stands beside its result.
Codex adds metadata of its own where its provider is named `OpenAI`."""
_RESULT_WITHOUT_EFFECT = _WITHOUT_EFFECT | {"name", "namespace"}
_ONLY: dict[str, tuple[Any, ...]] = {"async": (False,), "caller": ({"type": "direct"},)}
_PART_WITHOUT_EFFECT = frozenset(
    {"annotations", "content_item_metadata", "logprobs", "prompt_cache_breakpoint"}
)


@dataclass(frozen=True, slots=True)
class Said:
    """A message, and where it begins."""

    message: Message
    item: int
    """Number of its first item in the request."""


def read_items(fields: Fields, earlier: Earlier[Said]) -> tuple[Message, ...]:
    """Turn items into messages; the items of one assistant turn become one message.

    What an earlier request had is not read again, but for its last turn, which may have grown.

    Raises:
        BadRequest: An item is wrong or of a kind that is not supported.
    """
    raw = fields.items("input")
    known = _closed(*earlier.common(raw))
    start = known[-1].item if known else 0
    said = (*known[:-1], *_read(fields.objects("input", start=start), start))
    earlier.keep(raw, said)
    return tuple(each.message for each in said)


def _closed(common: int, read: tuple[Said, ...]) -> tuple[Said, ...]:
    """Take what was read up to the last message that begins within the common items.

    Items look back to the last message that is no tool's result and no further, and the first
    item of such a message began it whatever came before: from there on all can be read anew.
    """
    count = bisect_left(read, common, key=attrgetter("item"))
    while count and _is_result(read[count - 1].message):
        count -= 1
    return read[:count]


def _read(items: Iterable[Fields], start: int) -> Iterator[Said]:
    history: list[Message | _Turn] = []
    begins: list[int] = []
    for number, item in enumerate(items, start):
        _add(history, item)
        begins += [number] * (len(history) - len(begins))
    for entry, number in zip(history, begins, strict=True):
        yield Said(entry.message() if isinstance(entry, _Turn) else entry, number)


@dataclass(slots=True)
class _Turn:
    """An assistant turn that grows by its items."""

    response: str | None = None
    """Which response its items came from, where their ids tell."""
    rank: int = -1
    """Place of its last item in a turn's order: reasoning, message, calls."""
    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message:
        """Make one message of the items."""
        return Message(
            role="assistant",
            content="".join(self.content),
            reasoning="".join(self.reasoning) or None,
            tool_calls=tuple(self.calls),
        )

    def takes(self, rank: int, response: str | None, *, adjacent: bool) -> bool:
        """Tell whether an item belongs to this turn.

        The ids of items decide. Where a harness has dropped or replaced them, an item belongs to
        the turn just before it as long as the order of a turn holds.
        """
        if response is not None and self.response is not None:
            return response == self.response
        repeats = rank == self.rank and rank != _MESSAGE
        return adjacent and (rank > self.rank or repeats)

    def add(self, item: Fields, rank: int, response: str | None) -> None:
        """Read one more item."""
        self.rank = rank
        self.response = self.response or response
        if rank == _REASONING:
            self.reasoning.append(_reasoning(item))
        elif rank == _MESSAGE:
            self.content.append(_text(item, "content"))
        else:
            self.calls.append(_CALLS[item.required_text("type")](item))


_REASONING, _MESSAGE, _CALL = range(3)


def _add(history: list[Message | _Turn], item: Fields) -> None:
    kind = item.text("type") or "message"
    if kind in _FIELDS:
        free = _RESULT_WITHOUT_EFFECT if kind.endswith("_output") else _WITHOUT_EFFECT
        item.refuse_others(_FIELDS[kind] | {"type", "id"}, without_effect=free, only=_ONLY)
    if kind == DECLARES_TOOLS:
        return
    if kind in COMPACTED:
        history.append(read_summary(item))
    elif kind == TRIGGER:
        history.append(ASK)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = _text(item, "output")
        history.append(Message("tool", output, tool_call_id=item.required_text("call_id")))
    elif kind == "message" and item.required_text("role") != "assistant":
        history.append(_message(item))
    elif kind == "message":
        _add_to_turn(history, item, _MESSAGE)
    elif kind == "reasoning":
        _add_to_turn(history, item, _REASONING)
    elif kind in _CALLS:
        _add_to_turn(history, item, _CALL)
    else:
        raise _unknown_item(kind, item)


def _add_to_turn(history: list[Message | _Turn], item: Fields, rank: int) -> None:
    """Add an item to the turn it belongs to, which tool results may have interrupted."""
    response = response_of(item.text("id"))
    last = next((entry for entry in reversed(history) if not _is_result(entry)), None)
    if isinstance(last, _Turn) and last.takes(rank, response, adjacent=last is history[-1]):
        turn = last
    else:
        turn = _Turn()
        history.append(turn)
    turn.add(item, rank, response)


def _is_result(entry: Message | _Turn) -> bool:
    return isinstance(entry, Message) and entry.role == "tool"


def _unknown_item(kind: str, item: Fields) -> Exception:
    if kind == "item_reference":
        fix = "Send the whole item, or set 'store' to false so that your client does."
    else:
        fix = "Leave the item out."
    return refuse(f"items of type '{kind}' are not supported", where=item.path("type"), fix=fix)


def _message(item: Fields) -> Message:
    name = item.required_text("role")
    role = _ROLES.get(name)
    if role is None:
        raise refuse(f"the role '{name}' is not supported", where=item.path("role"))
    return Message(role, _text(item, "content"))


def _text(item: Fields, name: str) -> str:
    """Read text or an array of text parts, joined without anything between."""
    value = item.raw(name)
    if value is None:
        raise refuse("a string or an array is missing", where=item.path(name))
    if isinstance(value, str):
        return value
    return "".join(map(_part, item.objects(name)))


def _part(part: Fields) -> str:
    kind = part.required_text("type")
    if kind == "input_image":
        raise refuse("images are not supported: the model reads text only", where=part.path("type"))
    if kind not in _TEXT_PARTS:
        raise refuse(
            f"content of type '{kind}' is not supported: only text", where=part.path("type")
        )
    part.refuse_others({"type", _TEXT_PARTS[kind]}, without_effect=_PART_WITHOUT_EFFECT)
    return part.required_text(_TEXT_PARTS[kind])


def _reasoning(item: Fields) -> str:
    """Read the reasoning as it was sampled, or a summary of it where there is nothing else."""
    content = "".join(map(_thought, item.objects("content")))
    summary = "\n\n".join(map(_thought, item.objects("summary")))
    if not content and not summary and item.text("encrypted_content"):
        raise refuse(
            "reasoning that another provider has encrypted cannot be read",
            where=item.path("encrypted_content"),
            fix="Begin a new conversation.",
        )
    return content or summary


def _thought(part: Fields) -> str:
    part.refuse_others({"type", "text"})
    return part.required_text("text")


def _function_call(item: Fields) -> ToolCall:
    return ToolCall(
        id=item.required_text("call_id"),
        name=model_name(item.required_text("name"), item.text("namespace")),
        arguments=item.required_text("arguments"),
    )


def _freeform_call(item: Fields) -> ToolCall:
    text = item.required_text("input")
    return ToolCall(
        id=item.required_text("call_id"),
        name=model_name(item.required_text("name"), item.text("namespace")),
        arguments=text if given_as_it_was(item.text("id")) else with_input(text),
    )


_CALLS: dict[str, Callable[[Fields], ToolCall]] = {
    "custom_tool_call": _freeform_call,
    "function_call": _function_call,
}
