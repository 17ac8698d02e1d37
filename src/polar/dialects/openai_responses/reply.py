"""Writes responses: their output items, and the whole object around them."""

from __future__ import annotations

from typing import Any

import orjson

from polar.dialects.openai_responses.compaction import compaction_item, what_is_left
from polar.dialects.openai_responses.ids import ItemKind, item_id
from polar.dialects.openai_responses.tools import input_of, own_name, write_tools
from polar.types import Chat, FinishReason, Reply, ToolCall, ToolSpec, Usage

__all__ = [
    "call_item",
    "ended",
    "message_item",
    "output_text",
    "reasoning_item",
    "reasoning_text",
    "response_fields",
    "status_of",
    "write_count",
    "write_response",
]

Item = dict[str, Any]


def write_response(chat: Chat, reply: Reply, *, response_id: str, created: int) -> bytes:
    """Write a whole response."""
    if chat.compacts == "conversation":
        return orjson.dumps(_compacted(chat, reply, response_id=response_id, created=created))
    fields = response_fields(chat, response_id=response_id, created=created)
    return orjson.dumps(ended(fields, _output(chat, reply, response_id=response_id), reply))


def _compacted(chat: Chat, reply: Reply, *, response_id: str, created: int) -> dict[str, Any]:
    summary = compaction_item(reply, response_id=response_id)
    return {
        "id": response_id,
        "object": "response.compaction",
        "created_at": created,
        "output": [*what_is_left(chat), summary],
        "usage": _usage(reply.usage),
    }


def write_count(prompt_tokens: int) -> bytes:
    """Write how many tokens a prompt has."""
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": prompt_tokens})


def response_fields(chat: Chat, *, response_id: str, created: int) -> dict[str, Any]:
    """Write a response that has just begun."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": chat.sampling.max_tokens,
        "max_tool_calls": None,
        "metadata": {},
        "model": chat.model,
        "output": [],
        "parallel_tool_calls": chat.parallel_tool_calls,
        "previous_response_id": chat.continues,
        "reasoning": {"effort": None, "summary": None},
        "store": chat.stored,
        "temperature": chat.sampling.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": write_tools(chat.tools),
        "top_p": chat.sampling.top_p,
        "truncation": "disabled",
        "usage": None,
        **chat.told,
    }


def ended(fields: dict[str, Any], output: list[Item], reply: Reply) -> dict[str, Any]:
    """Write how a response that had begun has ended."""
    cut = reply.finish_reason == "length"
    return {
        **fields,
        "status": status_of(reply.finish_reason),
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output,
        "usage": _usage(reply.usage),
    }


def status_of(finish_reason: FinishReason) -> str:
    """Tell the status of a response, and of its last item."""
    return "incomplete" if finish_reason == "length" else "completed"


def reasoning_item(own_id: str, content: list[Item], status: str) -> Item:
    """Write the item that has the reasoning."""
    return {
        "id": own_id,
        "type": "reasoning",
        "summary": [],
        "content": content,
        "encrypted_content": None,
        "status": status,
    }


def reasoning_text(text: str) -> Item:
    """Write the content part of reasoning."""
    return {"type": "reasoning_text", "text": text}


def message_item(own_id: str, content: list[Item], status: str) -> Item:
    """Write the item that has the text."""
    return {
        "id": own_id,
        "type": "message",
        "role": "assistant",
        "content": content,
        "status": status,
    }


def output_text(text: str) -> Item:
    """Write the content part of text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(
    call: ToolCall, tool: ToolSpec | None, *, response_id: str, index: int, status: str
) -> Item:
    """Write the call of a tool as the harness knows it.

    A freeform tool gets its input as plain text. Where the model's arguments are not of the form
    that has one, the text of the arguments is given as it is, and the item's id says so.
    """
    freeform = tool is not None and tool.freeform
    taken = input_of(call.arguments) if freeform else None
    kind: ItemKind = "fc" if not freeform else "raw" if taken is None else "ctc"
    item: Item = {
        "id": item_id(kind, response_id, index),
        "type": "custom_tool_call" if freeform else "function_call",
        "call_id": call.id,
        "name": call.name if tool is None else own_name(tool),
        "status": status,
    }
    if tool is not None and tool.namespace is not None:
        item["namespace"] = tool.namespace
    if freeform:
        return {**item, "input": call.arguments if taken is None else taken}
    return {**item, "arguments": call.arguments}


def _output(chat: Chat, reply: Reply, *, response_id: str) -> list[Item]:
    """Write all items of a reply: reasoning, text, calls; a reply without any is empty text."""
    if chat.compacts is not None:
        return [compaction_item(reply, response_id=response_id)]
    message = reply.message
    output: list[Item] = []
    if message.reasoning:
        content = [reasoning_text(message.reasoning)]
        output.append(reasoning_item(item_id("rs", response_id, 0), content, "completed"))
    if message.content or not (output or message.tool_calls):
        own_id = item_id("msg", response_id, len(output))
        output.append(message_item(own_id, [output_text(message.content)], "completed"))
    tools = {tool.name: tool for tool in chat.tools}
    for call in message.tool_calls:
        tool = tools.get(call.name)
        output.append(
            call_item(call, tool, response_id=response_id, index=len(output), status="completed")
        )
    output[-1]["status"] = status_of(reply.finish_reason)
    return output


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.sampled_tokens,
    }
