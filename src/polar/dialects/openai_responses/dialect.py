"""The Responses dialect as the gateway uses it."""

from __future__ import annotations

from collections.abc import Mapping

from polar.dialects.base import NO_PARAMS, Route, StreamEncoder
from polar.dialects.earlier import Earlier
from polar.dialects.openai_chat.reply import write_error, write_model, write_models
from polar.dialects.openai_responses.items import Said
from polar.dialects.openai_responses.reply import write_count, write_response
from polar.dialects.openai_responses.request import parse_chat
from polar.dialects.openai_responses.stream import EventEncoder
from polar.errors import PolarError
from polar.types import Chat, Reply

__all__ = ["OpenAIResponses"]


class OpenAIResponses:
    """OpenAI Responses.

    What it does with tools beyond plain functions:

    - A freeform (`custom`) tool is offered as a function whose one argument is the string
      `input`; the grammar of its input is told in the description, not enforced. Arguments that
      are not of that form are given as the input as they are.
    - The tools of a `namespace` are offered under names with the namespace before them.
    - `web_search`, `tool_search` and `image_generation` are left out: they run at the provider,
      harnesses declare them as an extra, and the model cannot be offered what nobody here could
      answer. All other tools of the provider's own are refused by name.

    Source: https://platform.openai.com/docs/api-reference/responses
    """

    name = "openai_responses"
    routes = (
        Route("POST", r"/v1/responses", "chat"),
        Route("POST", r"/v1/responses/(?P<compacts>compact)", "chat"),
        Route("POST", r"/v1/responses/(?P<counts>input_tokens)", "count"),
    )

    def parse(self, body: bytes, params: Mapping[str, str] = NO_PARAMS) -> Chat:
        """Read a request.

        Raises:
            BadRequest: Not valid, or asks for something unsupported; names the field.
        """
        return parse_chat(body, params, Earlier())

    def parse_on(self, body: bytes, params: Mapping[str, str], earlier: Earlier[Said]) -> Chat:
        """Read a request without reading again what an earlier one had.

        Raises:
            BadRequest: As `parse`.
        """
        return parse_chat(body, params, earlier)

    def response(self, chat: Chat, reply: Reply, *, response_id: str, created: int) -> bytes:
        """Write a whole response."""
        return write_response(chat, reply, response_id=response_id, created=created)

    def count(self, prompt_tokens: int) -> bytes:
        """Write how many tokens the prompt of a request has."""
        return write_count(prompt_tokens)

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
        return EventEncoder(chat, response_id=response_id, created=created)

    def error(self, error: PolarError) -> tuple[int, bytes]:
        """Write an error in OpenAI's form: HTTP status and body."""
        return write_error(error)
