"""Shortens old tool results."""

from __future__ import annotations

from dataclasses import replace

from polar.gateway.interceptors.settings import HistorySettings
from polar.types import Chat, Message

__all__ = ["ShortenHistory"]


class ShortenHistory:
    """Keeps the beginning and the end of tool results that were long ago.

    Shortening another result changes the middle of the conversation, so the tree forks there.
    That happens once in `step` results, and every request in between extends the one before.
    """

    def __init__(self, settings: HistorySettings) -> None:
        self._settings = settings

    def __call__(self, chat: Chat) -> Chat:
        """Shorten the results before the last ones."""
        places = [at for at, message in enumerate(chat.messages) if message.role == "tool"]
        old = max(0, len(places) - self._settings.keep_last)
        shortened = frozenset(places[: old - old % self._settings.step])
        if not shortened:
            return chat
        messages = (
            self._shorten(message) if at in shortened else message
            for at, message in enumerate(chat.messages)
        )
        return replace(chat, messages=tuple(messages))

    def _shorten(self, message: Message) -> Message:
        head, tail = self._settings.head_chars, self._settings.tail_chars
        content = message.content
        left_out = len(content) - head - tail
        mark = f"\n[... {left_out} characters left out ...]\n"
        if left_out <= len(mark):
            return message
        return replace(message, content=content[:head] + mark + content[head + left_out :])
