"""The HTTP side of one engine server: requests, streams, and what their failures mean."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from polar.engines.settings import ServerSettings
from polar.errors import EngineError, EngineRefused, ServerFailed, ServerLost

__all__ = ["Connection", "ServerKind"]


@dataclass(frozen=True, slots=True)
class ServerKind:
    """What is told to people about a kind of server."""

    name: str
    """For sentences."""
    missing: str
    """What to do when the server has no such route or model."""
    forbidden: str
    """What to do when the server keeps a route shut."""


@dataclass(slots=True)
class Connection:
    """One server's address, with its open streams.

    Args:
        address: Of the server.
        settings: Time limits and the key.
        kind: What people are told.
        transport: What carries the requests; absent: the network.
    """

    address: str
    settings: ServerSettings
    kind: ServerKind
    transport: httpx.AsyncBaseTransport | None = None
    _client: httpx.AsyncClient = field(init=False)
    _streams: set[httpx.Response] = field(init=False, default_factory=set)
    _closed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._client = _client(self.address, self.settings, self.transport)

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed

    async def get(self, path: str) -> dict[str, Any]:
        """Get a JSON object.

        Raises:
            EngineError: The server cannot be reached or refuses.
        """
        return self._object(await self._ask("GET", path))

    async def post(
        self, path: str, body: Mapping[str, object] | None = None, *, timeout_s: float | None = None
    ) -> httpx.Response:
        """Post a body and wait for the whole answer.

        Raises:
            EngineError: The server cannot be reached or refuses.
        """
        return await self._ask("POST", path, body, timeout_s=timeout_s)

    async def post_json(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Post a body and read the answer's JSON object.

        Raises:
            EngineError: The server cannot be reached or refuses.
        """
        return self._object(await self.post(path, body))

    async def check(self, path: str) -> None:
        """Ask for a page of no interest.

        Raises:
            EngineError: The server cannot be reached or is not well.
        """
        await self._ask("GET", path)

    async def serves(self, path: str) -> bool:
        """Say whether there is such a page.

        Raises:
            ServerLost: The server cannot be reached.
        """
        try:
            return (await self._client.get(path)).is_success
        except httpx.HTTPError as error:
            raise self._lost(error) from error

    async def lines(self, path: str, body: Mapping[str, object]) -> AsyncGenerator[str]:
        """Post a body and stream the answer's lines; closing the iterator hangs up.

        Raises:
            ServerLost: The server cannot be reached, or broke off.
            EngineError: It refuses.
        """
        try:
            async with self._client.stream("POST", path, json=body) as response:
                self._streams.add(response)
                try:
                    await self._raise_for_status(response)
                    async for line in response.aiter_lines():
                        yield line
                finally:
                    self._streams.discard(response)
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise self._lost(error) from error

    async def drop_streams(self) -> None:
        """Hang up on all running requests; their readers get `ServerLost`."""
        for response in tuple(self._streams):
            await response.aclose()

    async def aclose(self) -> None:
        """Hang up on everything; readers of open streams get `EngineError`."""
        self._closed = True
        await self.drop_streams()
        await self._client.aclose()

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> httpx.Response:
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s
        try:
            response = await self._client.request(method, path, json=body, timeout=timeout)
        except httpx.HTTPError as error:
            raise self._lost(error) from error
        await self._raise_for_status(response)
        return response

    def _object(self, response: httpx.Response) -> dict[str, Any]:
        try:
            found = response.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise EngineError(
                "the server's answer is no JSON object",
                where=str(response.request.url),
                fix=f"Check that {self.kind.name} runs at this address.",
            )
        return found

    async def _raise_for_status(self, response: httpx.Response) -> None:
        """Turn a refusal into an error that says what to do."""
        if response.is_success:
            return
        said = _message((await response.aread()).decode(errors="replace"))
        where = str(response.request.url)
        raise _refusal(self.kind, response.status_code)(said, where)

    def _lost(self, error: Exception) -> EngineError:
        """Say that the server does not answer."""
        if self._closed:
            return EngineError("the engine was closed")
        return ServerLost(
            f"the server does not answer: {type(error).__name__}: {error}",
            where=self.address,
            fix=f"Check that {self.kind.name} runs at this address.",
        )


def _client(
    url: str, settings: ServerSettings, transport: httpx.AsyncBaseTransport | None
) -> httpx.AsyncClient:
    key = settings.api_key
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(settings.token_timeout_s, connect=settings.connect_timeout_s),
        # The server closes idle connections, which a request would race with.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        transport=transport,
    )


def _refusal(kind: ServerKind, status: int) -> Callable[[str, str], EngineError]:
    """Choose what a status means: only a server's own failure may be no failure of the next."""
    if status == httpx.codes.FORBIDDEN:
        return lambda said, where: EngineRefused(
            f"the server keeps its token endpoints shut: {said}", where=where, fix=kind.forbidden
        )
    if status == httpx.codes.NOT_FOUND:
        return lambda said, where: EngineError(
            f"the server has no such address or model: {said}", where=where, fix=kind.missing
        )
    if status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS:
        return lambda said, where: ServerFailed(f"the server answers {status}: {said}", where=where)
    return lambda said, where: EngineError(f"the server answers {status}: {said}", where=where)


def _message(said: str) -> str:
    """Find the server's own sentence in an error's body."""
    try:
        body = orjson.loads(said)
        return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "a web page" if said.lstrip().startswith("<") else " ".join(said.split())[:200]
