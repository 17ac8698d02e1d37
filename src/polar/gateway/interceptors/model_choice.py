"""Chooses the model that answers."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from polar.gateway.interceptors.settings import ModelChoiceSettings
from polar.types import Chat

__all__ = ["ChooseModel"]


class ChooseModel:
    """Takes the model whose pattern is the first to fit the name that the harness asks for."""

    def __init__(self, settings: ModelChoiceSettings) -> None:
        self._settings = settings

    def __call__(self, chat: Chat) -> Chat:
        """Name another model, or leave the request as it is."""
        for pattern, model in self._settings.models.items():
            if fnmatchcase(chat.model, pattern):
                return replace(chat, model=model)
        return chat
