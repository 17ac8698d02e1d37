"""The ASGI application: authentication, routes, bodies, streams; nothing about tokens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from polar.dialects import CountsTokens, Dialect, ReadsOn, Route, StreamEncoder
from polar.errors import (
    BadRequest,
    NoWebSocket,
    PolarError,
    ReplyTooLarge,
    RequestTooSlow,
    Unauthorized,
    UnknownRoute,
)
from polar.gateway.asgi import (
    Receive,
    Scope,
    Send,
    bearer,
    head,
    read_body,
    read_headers,
    send_part,
    send_whole,
)
from polar.gateway.call import RunningCall
from polar.gateway.choices import all_replies, readers_of, stream_writer, write_replies
from polar.gateway.feed import Ending, Reader
from polar.gateway.session import OpenSession
from polar.gateway.settings import GatewaySettings
from polar.types import Chat

__all__ = ["GatewayApp"]

_SESSION_PATH = re.compile(r"/s/(?P<key>[^/]+)(?P<rest>/.*)")
_ANYTHING = re.compile(r"\(\?P<(?P<name>\w+)>\.\+\)")
_CHOICE = re.compile(r"\(\?(?:P<\w+>|:)(?P<choice>[^()]*)\)")
_KEY_HEADERS = ("x-api-key", "x-goog-api-key")


@dataclass(frozen=True, slots=True)
class _Request:
    """A request whose route is known."""

    method: str
    path: str
    """What is left of the path after the session's key."""
    key: str | None
    headers: Mapping[str, str]
    """Names in lower case."""


@dataclass(frozen=True, slots=True)
class _Target:
    """Who answers a request."""

    dialect: Dialect
    route: Route
    params: Mapping[str, str]
    reads_on: ReadsOn | None
    """The dialect, where it need not read again what an earlier request had."""


class GatewayApp:
    """Answers harnesses in their own wire format.

    Args:
        dialects: All wire formats; the first also writes errors for unknown routes, unless a
            header tells which format is spoken.
        find_session: Finds the open session of a key.
        model: Name of the model that is served.
        settings: Limits and intervals.
        clock: Unix seconds.
    """

    def __init__(
        self,
        dialects: Sequence[Dialect],
        *,
        find_session: Callable[[str], OpenSession | None],
        model: Callable[[], str],
        settings: GatewaySettings,
        clock: Callable[[], float],
    ) -> None:
        self._dialects = tuple(dialects)
        routes = [
            (route.method, re.compile(route.pattern), dialect, route)
            for dialect in dialects
            for route in dialect.routes
        ]
        self._routes = sorted(routes, key=lambda each: each[3].header is None)
        self._reads_on = {each.name: each for each in dialects if isinstance(each, ReadsOn)}
        self._find_session = find_session
        self._model = model
        self._settings = settings
        self._most_bytes = int(settings.max_response_mb * 2**20)
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = _read_head(scope)
        dialect = self._spoken(request)
        try:
            target = self._route(request)
            dialect = target.dialect
            session = self._authenticate(request)
            if target.route.serves in ("models", "model"):
                await self._send_models(target, send)
            else:
                await self._answer(target, session, request, receive, send)
        except PolarError as error:
            await self._send_error(dialect, error, send)

    def _route(self, request: _Request) -> _Target:
        for method, pattern, dialect, route in self._routes:
            if route.header is not None and route.header not in request.headers:
                continue
            if method == request.method and (found := pattern.fullmatch(request.path)):
                reads_on = self._reads_on.get(dialect.name)
                return _Target(dialect, route, found.groupdict(), reads_on)
        if request.headers.get("upgrade", "").lower() == "websocket":
            raise NoWebSocket("there are no WebSockets here", fix="Send the request by POST.")
        raise UnknownRoute(
            f"there is no route {request.method} {request.path}",
            fix=f"Use one of: {', '.join(dict.fromkeys(_shown(r) for *_, r in self._routes))}.",
        )

    def _spoken(self, request: _Request) -> Dialect:
        """Tell by its headers in which format a request without a route is to be answered."""
        told = (
            dialect
            for _, _, dialect, route in self._routes
            if route.header is not None and route.header in request.headers
        )
        return next(told, self._dialects[0])

    def _authenticate(self, request: _Request) -> OpenSession:
        session = None if request.key is None else self._find_session(request.key)
        if session is None:
            raise Unauthorized("the request carries no key of an open session")
        return session

    async def _answer(
        self,
        target: _Target,
        session: OpenSession,
        request: _Request,
        receive: Receive,
        send: Send,
    ) -> None:
        _check_plain(request.headers)
        chat = session.continued(_parse(target, await self._read(receive), session))
        if target.route.serves == "count":
            await self._send_count(target.dialect, session.prompt_tokens(chat), send)
            return
        calls = session.calls(chat, request.headers)
        async with _while_connected(receive):
            if chat.stream:
                await self._stream(target.dialect, chat, calls, send)
            else:
                await self._reply(target.dialect, chat, calls, send)

    async def _read(self, receive: Receive) -> bytes:
        timeout_s = self._settings.body_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await read_body(
                    receive, limit_bytes=int(self._settings.max_request_mb * 2**20)
                )
        except TimeoutError as error:
            raise RequestTooSlow(f"the request was not complete after {timeout_s:g} s") from error

    async def _reply(
        self, dialect: Dialect, chat: Chat, calls: Sequence[RunningCall], send: Send
    ) -> None:
        with readers_of(calls) as readers:
            replies = await all_replies([reader.whole() for reader in readers])
        if isinstance(replies, PolarError):
            await self._send_error(dialect, replies, send)
            return
        body = write_replies(
            dialect, chat, replies, response_id=calls[0].request.id, created=int(self._clock())
        )
        if len(body) > self._most_bytes:
            await self._send_error(dialect, self._too_large(), send)
            return
        await send_whole(send, 200, body)

    async def _stream(
        self, dialect: Dialect, chat: Chat, calls: Sequence[RunningCall], send: Send
    ) -> None:
        first = calls[0]
        with readers_of(calls) as readers:
            if not first.request.rendered:  # whether the prompt fits is not known yet
                now = asyncio.get_running_loop().time()
                await readers[0].begun(until=now + self._settings.keepalive_s)
                if isinstance(readers[0].ending, PolarError):
                    await self._send_error(dialect, readers[0].ending, send)
                    return
            writer = stream_writer(
                dialect,
                chat,
                response_id=first.request.id,
                created=int(self._clock()),
                prompt_tokens=first.prompt_tokens,
            )
            await send(head(200, b"text/event-stream", (b"cache-control", b"no-cache")))
            await send_part(send, b"".join(encoder.start() for encoder in writer.each))
            pairs = zip(readers, writer.each, strict=True)
            replies = await all_replies(
                [self._follow(reader, encoder, send) for reader, encoder in pairs]
            )
        if isinstance(replies, PolarError):
            # The body is left open: the server cuts the connection, so that no client can take
            # what it has for a finished reply.
            await send_part(send, writer.each[0].error(replies))
        else:
            await send({"type": "http.response.body", "body": writer.end(replies)})

    async def _follow(self, reader: Reader, encoder: StreamEncoder, send: Send) -> Ending:
        """Send what is sampled until the end, and a no-op where there is nothing to send.

        Dialects that hold a part of the reply back make nothing of many deltas, so what counts
        is the time since bytes were sent.
        """
        now = asyncio.get_running_loop().time
        due_at = now() + self._settings.keepalive_s
        sent_bytes = 0
        while (ending := reader.ending) is None:
            deltas = await reader.more(until=due_at)
            part = b"".join(map(encoder.delta, deltas))
            if not part and reader.ending is None and now() >= due_at:
                part = encoder.keepalive()
            sent_bytes += len(part)
            if sent_bytes > self._most_bytes:
                return self._too_large()
            if part:
                await send_part(send, part)
                due_at = now() + self._settings.keepalive_s
        return ending

    def _too_large(self) -> ReplyTooLarge:
        return ReplyTooLarge(
            f"the answer grew larger than {self._most_bytes} bytes",
            fix="Ask for fewer tokens, or raise `gateway.max_response_mb`.",
        )

    async def _send_models(self, target: _Target, send: Send) -> None:
        created, asked = int(self._clock()), target.params.get("model")
        if asked is None:
            body = target.dialect.models(self._model(), created=created)
        else:
            body = target.dialect.model(asked, created=created)
        await send_whole(send, 200, body)

    async def _send_count(self, dialect: Dialect, prompt_tokens: int, send: Send) -> None:
        if not isinstance(dialect, CountsTokens):
            raise TypeError(f"the dialect {dialect.name} has a route to count, but cannot count")
        await send_whole(send, 200, dialect.count(prompt_tokens))

    async def _send_error(self, dialect: Dialect, error: PolarError, send: Send) -> None:
        status, body = dialect.error(error)
        headers = []
        if status in (429, 503):
            headers.append((b"retry-after", str(self._settings.retry_after_s).encode()))
        if isinstance(error, RequestTooSlow):
            headers.append((b"connection", b"close"))  # the rest of it is not waited for
        await send_whole(send, status, body, *headers)


def _parse(target: _Target, body: bytes, session: OpenSession) -> Chat:
    if target.reads_on is not None:
        earlier = session.earlier(target.dialect.name)
        return target.reads_on.parse_on(body, target.params, earlier)
    return target.dialect.parse(body, target.params)


def _check_plain(headers: Mapping[str, str]) -> None:
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise BadRequest(
            f"a body that is compressed with '{encoding}' is not read",
            where="content-encoding",
            fix="Send it as it is.",
        )


def _shown(route: Route) -> str:
    """Write a route for people: names in place of what matches anything."""
    path = _ANYTHING.sub(lambda found: found["name"].upper(), route.pattern)
    return f"{route.method} {_CHOICE.sub(lambda found: found['choice'], path)}"


class _ClientGone(Exception):
    """The client has closed the connection."""


@asynccontextmanager
async def _while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel the body of the context when the client leaves, and end quietly."""
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_watch(receive))
            yield
            watcher.cancel()
    except* _ClientGone:
        pass


async def _watch(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _ClientGone


def _read_head(scope: Scope) -> _Request:
    headers = read_headers(scope)
    found = _SESSION_PATH.fullmatch(scope["path"])
    return _Request(
        method=scope["method"],
        path=found["rest"] if found else scope["path"],
        key=found["key"] if found else _header_key(headers),
        headers=headers,
    )


def _header_key(headers: Mapping[str, str]) -> str | None:
    return bearer(headers) or next(
        (headers[name] for name in _KEY_HEADERS if name in headers), None
    )
