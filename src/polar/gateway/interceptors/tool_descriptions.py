"""Rewrites the descriptions of tools."""

from __future__ import annotations

from dataclasses import replace

from polar.gateway.interceptors.settings import ToolDescriptionsSettings
from polar.types import Chat, ToolSpec

__all__ = ["DescribeTools"]


class DescribeTools:
    """Replaces, adds to and cuts what the model is told about tools."""

    def __init__(self, settings: ToolDescriptionsSettings) -> None:
        self._settings = settings

    def __call__(self, chat: Chat) -> Chat:
        """Rewrite the descriptions; tools that are not named are only cut."""
        return replace(chat, tools=tuple(map(self._described, chat.tools)))

    def _described(self, tool: ToolSpec) -> ToolSpec:
        settings = self._settings
        text = settings.replace.get(tool.name, tool.description)
        if tool.name in settings.add:
            text = "\n\n".join(filter(None, (text, settings.add[tool.name])))
        text = text[: settings.max_chars]
        return tool if text == tool.description else replace(tool, description=text)
