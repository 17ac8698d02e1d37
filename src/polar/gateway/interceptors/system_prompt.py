"""Adds to the system prompt."""

from __future__ import annotations

from dataclasses import replace

from polar.gateway.interceptors.settings import SystemPromptSettings
from polar.types import Chat, Message

__all__ = ["AddToSystemPrompt"]


class AddToSystemPrompt:
    """Adds a paragraph to the first system message, or puts one before all messages."""

    def __init__(self, settings: SystemPromptSettings) -> None:
        self._settings = settings

    def __call__(self, chat: Chat) -> Chat:
        """Add the text."""
        messages = chat.messages
        if not messages or messages[0].role != "system":
            return replace(chat, messages=(Message("system", self._settings.text), *messages))
        first = replace(messages[0], content=self._with_text(messages[0].content))
        return replace(chat, messages=(first, *messages[1:]))

    def _with_text(self, content: str) -> str:
        parts = (content, self._settings.text)
        if self._settings.place == "before":
            parts = parts[::-1]
        return "\n\n".join(filter(None, parts))
