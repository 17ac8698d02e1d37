"""The Chat Completions dialect as the gateway uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polar.dialects.base import NO_PARAMS, Route, StreamEncoder
from polar.dialects.earlier import Earlier
from polar.dialects.openai_chat.reply import (
    ChoicesEncoder,
    ChunkEncoder,
    write_error,
    write_model,
    write_models,
    write_response,
)
from polar.dialects.openai_chat.request import parse_chat
from polar.errors import PolarError
from polar.types import Chat, Message, Reply

__all__ = ["OpenAIChat"]


class OpenAIChat:
    """OpenAI Chat Completions.

    Source: https://platform.openai.com/docs/api-reference/chat
    """

    name = "openai_chat"
    routes = (
        Route("POST", r"/v1/chat/completions", "chat"),
        Route("GET", r"/v1/models", "models"),
        Route("GET", r"/v1/models/(?P<model>.+)", "model"),
    )

    def parse(self, body: bytes, params: Mapping[str, str] = NO_PARAMS) -> Chat:
        """Read a request.

        Raises:
            BadRequest: Not valid, or asks for something unsupported; names the field.
        """
        return parse_chat(body, Earlier())

    def parse_on(self, body: bytes, params: Mapping[str, str], earlier: Earlier[Message]) -> Chat:
        """Read a request without reading again what an earlier one had.

        Raises:
            BadRequest: As `parse`.
        """
        return parse_chat(body, earlier)

    def response(self, chat: Chat, reply: Reply, *, response_id: str, created: int) -> bytes:
        """Write a whole response."""
        return self.choices(chat, [reply], response_id=response_id, created=created)

    def choices(
        self, chat: Chat, replies: Sequence[Reply], *, response_id: str, created: int
    ) -> bytes:
        """Write a whole response of several replies."""
        return write_response(chat, replies, response_id=response_id, created=created)

    def models(self, model: str, *, created: int) -> bytes:
        """Write the list of models."""
        return write_models(model, created=created)

    def model(self, name: str, *, created: int) -> bytes:
        """Write one model, under the name that was asked for."""
        return write_model(name, created=created)

    def encoder(
        self, chat: Chat, *, response_id: str, created: int, prompt_tokens: int | None = None
    ) -> StreamEncoder:
        """Start encoding a streamed response."""
        return ChunkEncoder(chat, response_id=response_id, created=created)

    def choices_encoder(self, chat: Chat, *, response_id: str, created: int) -> ChoicesEncoder:
        """Start encoding several streamed replies."""
        return ChoicesEncoder(chat, response_id=response_id, created=created)

    def error(self, error: PolarError) -> tuple[int, bytes]:
        """Write an error in OpenAI's form: HTTP status and body."""
        return write_error(error)
