"""What a dialect is: one provider's wire format, translated without any I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

from polar.dialects.earlier import Earlier
from polar.errors import PolarError
from polar.types import Chat, Delta, Reply

__all__ = [
    "NO_PARAMS",
    "ChoicesEncoder",
    "CountsTokens",
    "Dialect",
    "GivesChoices",
    "ReadsOn",
    "Route",
    "StreamEncoder",
]

NO_PARAMS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path that a dialect answers, seen from the session's base URL."""

    method: Literal["GET", "POST"]
    pattern: str
    """Regular expression that the whole path matches; its named groups go to `parse`."""
    serves: Literal["chat", "models", "model", "count"]
    header: str | None = None
    """Name, in lower case, of a header that only this format's clients send: such a route comes
    before another format's with the same path, and is for requests that have it. Absent: all."""


class StreamEncoder(Protocol):
    """Encodes one streamed reply; the concatenated bytes are the response body."""

    def start(self) -> bytes:
        """Encode what comes before the first token."""
        ...

    def keepalive(self) -> bytes:
        """Encode a native no-op event of the dialect (not only a comment)."""
        ...

    def delta(self, delta: Delta) -> bytes:
        """Encode a piece of the reply as soon as it is known."""
        ...

    def end(self, reply: Reply) -> bytes:
        """Encode the finish, usage and terminal event; sent only after the call is on record."""
        ...

    def error(self, error: PolarError) -> bytes:
        """Encode an error in the middle of a stream; the connection is aborted after it."""
        ...


class Dialect(Protocol):
    """A wire format: request bytes -> Chat, Reply -> response bytes."""

    name: str
    routes: tuple[Route, ...]

    def parse(self, body: bytes, params: Mapping[str, str] = NO_PARAMS) -> Chat:
        """Read a request.

        Args:
            body: The request's body.
            params: What the named groups of the route's pattern matched.

        Raises:
            BadRequest: Not valid, or asks for something unsupported; names the field.
        """
        ...

    def response(self, chat: Chat, reply: Reply, *, response_id: str, created: int) -> bytes:
        """Write a whole response."""
        ...

    def models(self, model: str, *, created: int) -> bytes:
        """Write the answer to a question for the models there are: one."""
        ...

    def model(self, name: str, *, created: int) -> bytes:
        """Write the answer to a question for one model: it is there, by whatever name."""
        ...

    def encoder(
        self, chat: Chat, *, response_id: str, created: int, prompt_tokens: int | None = None
    ) -> StreamEncoder:
        """Start encoding a streamed response.

        Args:
            chat: The request.
            response_id: Id of the response.
            created: Unix seconds.
            prompt_tokens: How many tokens the prompt has, for formats that begin with it; absent:
                not known.
        """
        ...

    def error(self, error: PolarError) -> tuple[int, bytes]:
        """Write an error in the provider's own form: HTTP status and body."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """A dialect with a route that tells how long a prompt is (`serves="count"`)."""

    def count(self, prompt_tokens: int) -> bytes:
        """Write the answer: how many tokens the prompt of a request has."""
        ...


class ChoicesEncoder(Protocol):
    """Encodes several streamed replies to one request, in any order between them."""

    @property
    def each(self) -> Sequence[StreamEncoder]:
        """What encodes each reply up to its end."""
        ...

    def end(self, replies: Sequence[Reply]) -> bytes:
        """Encode how all have ended; sent only after all the calls are on record."""
        ...


@runtime_checkable
class GivesChoices(Protocol):
    """A dialect whose requests may ask for several replies, which are one response."""

    def choices(
        self, chat: Chat, replies: Sequence[Reply], *, response_id: str, created: int
    ) -> bytes:
        """Write a whole response."""
        ...

    def choices_encoder(self, chat: Chat, *, response_id: str, created: int) -> ChoicesEncoder:
        """Start encoding a streamed response."""
        ...


@runtime_checkable
class ReadsOn(Protocol):
    """A dialect that need not read again what an earlier request of the session had."""

    def parse_on(self, body: bytes, params: Mapping[str, str], earlier: Earlier[Any]) -> Chat:
        """Read a request to what `parse` reads it to.

        Args:
            body: The request's body.
            params: What the named groups of the route's pattern matched.
            earlier: What was read of the session's requests in this dialect.

        Raises:
            BadRequest: As `parse`.
        """
        ...
