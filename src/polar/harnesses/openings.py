"""What presets look at where no header tells the kind of a call: how prompts of the harness begin.

A harness's own words also stand in task texts and files that quote them, so that each is looked
for only where the harness itself writes: at the start of the system prompt, or in what it asks
after a reply.
"""

from __future__ import annotations

from polar.types import Chat

__all__ = ["asks_after_a_reply", "system_prompt"]


def system_prompt(chat: Chat) -> str:
    """Give the text that the harness begins with; empty where it begins with no system message."""
    first = chat.messages[0] if chat.messages else None
    return first.content if first is not None and first.role == "system" else ""


def asks_after_a_reply(chat: Chat, opening: str) -> bool:
    """Tell whether a line of the last message, a user's that follows a reply, begins so.

    A harness may put several things that it has to say into one message, hence any line.

    Args:
        chat: The request.
        opening: What the line begins with.
    """
    *before, last = chat.messages or (None,)
    if last is None or last.role != "user":
        return False
    replied = any(message is not None and message.role == "assistant" for message in before)
    return replied and any(line.startswith(opening) for line in last.content.splitlines())
