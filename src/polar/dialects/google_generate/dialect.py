"""The generateContent dialect as the gateway uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polar.dialects.base import NO_PARAMS, Route, StreamEncoder
from polar.dialects.earlier import Earlier
from polar.dialects.google_generate.contents import Said
from polar.dialects.google_generate.reply import (
    ChoicesEncoder,
    ChunkEncoder,
    write_count,
    write_error,
    write_model,
    write_models,
    write_response,
)
from polar.dialects.google_generate.request import parse_chat
from polar.errors import PolarError
from polar.types import Chat, Reply

__all__ = ["GoogleGenerate"]

_MODELS = r"/(?:v1beta|v1)/models"
_MODEL = _MODELS + r"/(?P<model>.+)"
_HEADER = "x-goog-api-key"


class GoogleGenerate:
    """Google generateContent, as the Gemini API has it.

    The path names the model and the method. A stream is always server-sent events, as harnesses
    ask for with `?alt=sse`; the array of responses that Google sends without it is not served.

    Source: https://ai.google.dev/api/generate-content
    """

    name = "google_generate"
    routes = (
        Route("POST", _MODEL + r":(?P<method>generateContent|streamGenerateContent)", "chat"),
        Route("POST", _MODEL + r":(?P<method>countTokens)", "count"),
        Route("GET", r"/v1beta/models", "models"),
        Route("GET", r"/v1beta/models/(?P<model>.+)", "model"),
        Route("GET", _MODELS, "models", header=_HEADER),
        Route("GET", _MODEL, "model", header=_HEADER),
    )

    def parse(self, body: bytes, params: Mapping[str, str] = NO_PARAMS) -> Chat:
        """Read a request to generate, or one to count the tokens of its prompt.

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
        return self.choices(chat, [reply], response_id=response_id, created=created)

    def choices(
        self, chat: Chat, replies: Sequence[Reply], *, response_id: str, created: int
    ) -> bytes:
        """Write a whole response of several replies."""
        return write_response(chat, replies, response_id=response_id)

    def count(self, prompt_tokens: int) -> bytes:
        """Write how many tokens a prompt has."""
        return write_count(prompt_tokens)

    def models(self, model: str, *, created: int) -> bytes:
        """Write the list of models."""
        return write_models(model)

    def model(self, name: str, *, created: int) -> bytes:
        """Write one model, under the name that was asked for."""
        return write_model(name)

    def encoder(
        self, chat: Chat, *, response_id: str, created: int, prompt_tokens: int | None = None
    ) -> StreamEncoder:
        """Start encoding a streamed response."""
        return ChunkEncoder(chat, response_id=response_id)

    def choices_encoder(self, chat: Chat, *, response_id: str, created: int) -> ChoicesEncoder:
        """Start encoding several streamed replies."""
        return ChoicesEncoder(chat, response_id=response_id)

    def error(self, error: PolarError) -> tuple[int, bytes]:
        """Write an error in Google's form: HTTP status and body."""
        return write_error(error)
