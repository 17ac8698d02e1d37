"""The HTTP side of one engine server: requests, streams, and what their failures mean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson

from polar.engines.settings import ServerSettings
from polar.errors import EngineError, EngineRefused, PolarError, ServerFailed, ServerLost

__all__ = ["Connection", "ServerKind", "event_data", "rest_of_stream"]

_IDLE_S = 2.0
"""Servers close a connection that was idle for 5 s (uvicorn's default); it must not meet that."""
_REST_S = 0.5
_LINE_BYTES = 2**24
"""Longest line of a stream, which may hold the tokens of a whole reply."""


@dataclass(frozen=True, slots=True)
class ServerKind:
    """What is told to people about a kind of server."""

    name: str
    """For sentences."""
    missing: str
    """What to do when the server has no such route or model."""
    forbidden: str
    """What to do when the server keeps a route shut."""
    read_refusal: Callable[[int, bytes], PolarError | None] | None = None
    """Reads what only this kind of server means by a status and body; nothing: as all mean it."""


@dataclass(slots=True)
class Connection:
    """One server's address, with its open streams.

    Servers are reached directly, past any proxy of the environment, and connections are used
    again.

    Args:
        address: Of the server.
        settings: Time limits and the key.
        kind: What people are told.
    """

    address: str
    settings: ServerSettings
    kind: ServerKind
    _session: aiohttp.ClientSession | None = field(init=False, default=None)
    _streams: set[aiohttp.ClientResponse] = field(init=False, default_factory=set)
    _opening: set[asyncio.Timeout] = field(init=False, default_factory=set)
    _closed: bool = field(init=False, default=False)

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed

    async def get(self, path: str) -> dict[str, Any]:
        """Get a JSON object.

        Raises:
            EngineError: The server cannot be reached or refuses.
        """
        return self._object(path, await self._ask("GET", path))

    async def post(
        self, path: str, body: Mapping[str, object] | None = None, *, timeout_s: float | None = None
    ) -> bytes:
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
        return self._object(path, await self.post(path, body))

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
        async with self._request("GET", path) as response:
            return response.ok

    async def lines(self, path: str, body: Mapping[str, object]) -> AsyncGenerator[Sequence[bytes]]:
        """Post a request to sample and stream the answer's lines; closing hangs up.

        Lines that have arrived by the time they are asked for come together, without their ends;
        blank ones are left out.

        Raises:
            ServerLost: The server cannot be reached, or broke off.
            EngineError: It refuses.
        """
        held: list[bytes] = []
        async with self._sampling(path, body) as response:
            async for part in response.content.iter_any():
                held.append(part)
                if b"\n" in part:
                    *lines, rest = b"".join(held).split(b"\n")
                    held = [rest]
                    if lines := [line for line in lines if line]:
                        yield lines
                elif sum(map(len, held)) > _LINE_BYTES:
                    raise ValueError(f"a line of the answer is longer than {_LINE_BYTES} bytes")
            if any(held):
                yield [b"".join(held)]

    async def sampled(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Post a request to sample and wait for its end; being cancelled hangs up.

        Raises:
            ServerLost: The server cannot be reached, or broke off.
            EngineError: It refuses.
        """
        async with self._sampling(path, body) as response:
            return self._object(path, await response.read())

    async def drop_streams(self) -> None:
        """Hang up on all requests to sample; their readers get `ServerLost`."""
        now = asyncio.get_running_loop().time()
        for opening in tuple(self._opening):
            opening.reschedule(now)
        for response in tuple(self._streams):
            response.close()

    async def aclose(self) -> None:
        """Hang up on everything; readers of open streams get `EngineError`."""
        self._closed = True
        await self.drop_streams()
        if self._session is not None:
            await self._session.close()

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> bytes:
        async with self._request(method, path, body, timeout_s=timeout_s) as response:
            await self._raise_for_status(response)
            return await response.read()

    @asynccontextmanager
    async def _sampling(
        self, path: str, body: Mapping[str, object]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Post a request that `drop_streams` ends, wherever it is."""
        with self._losses_told():
            async with await self._droppable(path, body) as response:
                try:
                    await self._raise_for_status(response)
                    yield response
                finally:
                    self._streams.discard(response)

    async def _droppable(self, path: str, body: Mapping[str, object]) -> aiohttp.ClientResponse:
        """Send, with an end to the wait for the head of the answer that `drop_streams` can set."""
        opening = asyncio.timeout(None)
        try:
            async with opening:
                self._opening.add(opening)
                response = await self._send("POST", path, body)
        except TimeoutError as error:
            if opening.expired():
                raise aiohttp.ClientConnectionError("the request was given up") from error
            raise
        finally:
            self._opening.discard(opening)
        if opening.when() is not None:  # the end was set, and the head came at the same moment
            response.close()
            raise aiohttp.ClientConnectionError("the request was given up")
        self._streams.add(response)
        return response

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; leaving before the answer's end hangs up."""
        with self._losses_told():
            async with await self._send(method, path, body, timeout_s=timeout_s) as response:
                yield response

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> aiohttp.ClientResponse:
        """Send a request and wait for the head of its answer."""
        data = None if body is None else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        silence_s = self.settings.token_timeout_s if timeout_s is None else timeout_s
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self.settings.connect_timeout_s, sock_read=silence_s
        )
        url = f"{self.address.rstrip('/')}{path}"
        return await self._opened().request(method, url, data=data, timeout=timeout)

    @contextmanager
    def _losses_told(self) -> Iterator[None]:
        """Turn what a connection fails with into an error that names the server."""
        try:
            yield
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._lost(error) from error

    def _opened(self) -> aiohttp.ClientSession:
        """Give the session, which belongs to the event loop that first asks for it."""
        if self._closed:
            raise EngineError("the engine was closed")
        if self._session is None:
            key = self.settings.key()
            self._session = aiohttp.ClientSession(
                headers={"Content-Type": "application/json"}
                | ({"Authorization": f"Bearer {key}"} if key else {}),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_LINE_BYTES,
            )
        return self._session

    def _object(self, path: str, answer: bytes) -> dict[str, Any]:
        try:
            found = orjson.loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise EngineError(
                "the server's answer is no JSON object",
                where=f"{self.address}{path}",
                fix=f"Check that {self.kind.name} runs at this address.",
            )
        return found

    async def _raise_for_status(self, response: aiohttp.ClientResponse) -> None:
        """Turn a refusal into an error that says what to do."""
        if response.ok:
            return
        body = await response.read()
        read = self.kind.read_refusal
        if read is not None and (refusal := read(response.status, body)) is not None:
            raise refusal
        said = _message(body.decode(errors="replace"))
        raise _refusal(self.kind, response.status)(said, str(response.url))

    def _lost(self, error: Exception) -> EngineError:
        """Say that the server does not answer."""
        if self._closed:
            return EngineError("the engine was closed")
        return ServerLost(
            f"the server does not answer: {type(error).__name__}: {error}",
            where=self.address,
            fix=f"Check that {self.kind.name} runs at this address.",
        )


def event_data(line: bytes) -> Any:
    """Read the JSON of a server-sent event's line; None for blank lines and the end mark.

    Raises:
        ServerLost: The line is torn.
    """
    data = line.removeprefix(b"data:").strip()
    if data == line or data in {b"", b"[DONE]"}:
        return None
    try:
        return orjson.loads(data)
    except ValueError as error:
        raise ServerLost("the server broke off within a line") from error


async def rest_of_stream(lines: AsyncIterator[Sequence[bytes]]) -> None:
    """Read what is left of a stream that said its last, so that its connection can be used again.

    It was sent together with the last event, so there is nothing to wait for.
    """
    with suppress(TimeoutError, EngineError):
        async with asyncio.timeout(_REST_S):
            async for _ in lines:
                pass


def _refusal(kind: ServerKind, status: int) -> Callable[[str, str], EngineError]:
    """Choose what a status means: only a server's own failure may be no failure of the next."""
    if status == HTTPStatus.FORBIDDEN:
        return lambda said, where: EngineRefused(
            f"the server keeps its token endpoints shut: {said}", where=where, fix=kind.forbidden
        )
    if status == HTTPStatus.NOT_FOUND:
        return lambda said, where: EngineError(
            f"the server has no such address or model: {said}", where=where, fix=kind.missing
        )
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return lambda said, where: ServerFailed(f"the server answers {status}: {said}", where=where)
    return lambda said, where: EngineError(f"the server answers {status}: {said}", where=where)


def _message(said: str) -> str:
    """Find the server's own sentence in an error's body."""
    try:
        body = orjson.loads(said)
        return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "a web page" if said.lstrip().startswith("<") else " ".join(said.split())[:200]
