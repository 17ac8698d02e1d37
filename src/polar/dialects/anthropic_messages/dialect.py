"""The Messages dialect as the gateway uses it."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from polar.dialects.anthropic_messages.errors import write_error
from polar.dialects.anthropic_messages.messages import Said
from polar.dialects.anthropic_messages.reply import (
    EventEncoder,
    write_model,
    write_models,
    write_response,
)
from polar.dialects.anthropic_messages.request import parse_chat
from polar.dialects.base import NO_PARAMS, Route, StreamEncoder
from polar.dialects.earlier import Earlier
from polar.errors import PolarError
from polar.types import Chat, Reply

__all__ = ["AnthropicMessages"]


class AnthropicMessages:
    """Anthropic Messages.

    Source: https://platform.claude.com/docs/en/api/messages
    """

    name = "anthropic_messages"
    routes = (
        Route("POST", r"/v1/messages", "chat"),
        Route("POST", r"/v1/messages/(?P<counts>count_tokens)", "count"),
        Route("GET", r"/v1/models", "models", header="anthropic-version"),
        Route("GET", r"/v1/models/(?P<model>.+)", "model", header="anthropic-version"),
    )

    def parse(self, body: bytes, params: Mapping[str, str] = NO_PARAMS) -> Chat:
        """Read a request.

        Raises:
            BadRequest: Not valid, or asks for something unsupported; names the field.
        """
        return parse_chat(body, Earlier(), counts="counts" in params)

    def parse_on(self, body: bytes, params: Mapping[str, str], earlier: Earlier[Said]) -> Chat:
        """Read a request without reading again what an earlier one had.

        Raises:
            BadRequest: As `parse`.
        """
        return parse_chat(body, earlier, counts="counts" in params)

    def response(self, chat: Chat, reply: Reply, *, response_id: str, created: int) -> bytes:
        """Write a whole response."""
        return write_response(chat, reply, response_id=response_id)

    def models(self, model: str, *, created: int) -> bytes:
        """Write the list of models."""
        return write_models(model, created=created)

    def model(self, name: str, *, created: int) -> bytes:
        """Write one model, under the name that was asked for."""
        return write_model(name, created=created)

    def count(self, prompt_tokens: int) -> bytes:
        """Write how many tokens a prompt has."""
        return orjson.dumps({"input_tokens": prompt_tokens})

    def encoder(
        self, chat: Chat, *, response_id: str, created: int, prompt_tokens: int | None = None
    ) -> StreamEncoder:
        """Start encoding a streamed response."""
        return EventEncoder(chat, response_id=response_id, prompt_tokens=prompt_tokens or 0)

    def error(self, error: PolarError) -> tuple[int, bytes]:
        """Write an error in Anthropic's form: HTTP status and body."""
        status, body = write_error(error)
        return status, orjson.dumps(body)
