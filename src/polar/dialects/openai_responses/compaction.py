"""Summaries that stand for a conversation: asked for, given as an item, read again.

OpenAI's own are encrypted, and only OpenAI can read them. Here the model is asked for one at the
end of the conversation as it is, and what it answers is the item's content, in a form that a
client has no reason to look into.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from polar.dialects.fields import Fields, refuse
from polar.dialects.openai_responses.ids import item_id
from polar.types import Chat, Message, Reply

__all__ = ["ASK", "COMPACTED", "TRIGGER", "compaction_item", "read_summary", "what_is_left"]

TRIGGER = "compaction_trigger"
"""Type of the last item of a request whose reply is to be a summary."""
COMPACTED = frozenset({"compaction", "compaction_summary"})
"""Types of the items that have one."""

ASK = Message(
    "user",
    "The history of this conversation is about to be replaced by a summary. Write it, so that the "
    "work can go on from it alone: what was asked for and any wishes about how, what was done and "
    "found out, what must be kept word for word (names, paths, commands, numbers), and what is "
    "left to do. Answer with the summary only, and call no tool.",
)
_HEADING = "What was said and done before this, in a summary of your own:\n\n"
_MARK = "polar-"


def compaction_item(reply: Reply, *, response_id: str) -> dict[str, Any]:
    """Write the item that has a reply for a summary."""
    text = base64.b64encode(reply.message.content.encode()).decode()
    return {
        "id": item_id("cmp", response_id, 0),
        "type": "compaction",
        "encrypted_content": _MARK + text,
    }


def read_summary(item: Fields) -> Message:
    """Read such an item as the model is to see it.

    Raises:
        BadRequest: It was not written here.
    """
    content = item.required_text("encrypted_content")
    try:
        text = base64.b64decode(content.removeprefix(_MARK), validate=True).decode()
    except (binascii.Error, ValueError):
        text = None
    if text is None or not content.startswith(_MARK):
        raise refuse(
            "a summary that another provider has encrypted cannot be read",
            where=item.path("encrypted_content"),
            fix="Begin a new conversation.",
        )
    return Message("user", _HEADING + text)


def what_is_left(chat: Chat) -> list[dict[str, Any]]:
    """Write what stays as it is beside a summary: what the user and the system said.

    Earlier summaries do not, for the new one was made of them, nor do the request's instructions,
    which come again with each request.
    """
    said = chat.messages[int(chat.instructed) : -1]
    return [_item(message) for message in _lasting(said)]


def _lasting(messages: Iterable[Message]) -> Iterable[Message]:
    for message in messages:
        if message.role in ("system", "user") and not message.content.startswith(_HEADING):
            yield message


def _item(message: Message) -> dict[str, Any]:
    content = [{"type": "input_text", "text": message.content}]
    role = "developer" if message.role == "system" else message.role
    return {"type": "message", "role": role, "content": content}
