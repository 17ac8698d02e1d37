"""The control API: opens and closes sessions from outside, pauses, tells how things are."""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polar.errors import (
    BadRequest,
    GatewayError,
    PolarError,
    RequestTooLarge,
    RequestTooSlow,
    Unauthorized,
    UnknownRoute,
)
from polar.gateway.asgi import Receive, Scope, Send, bearer, read_body, read_headers, send_whole
from polar.gateway.boundary import ModelBoundary
from polar.gateway.control_token import load_token
from polar.gateway.metrics import metrics
from polar.gateway.policy import SessionPolicy, SessionUsage
from polar.gateway.scorers.command import call_as_json
from polar.gateway.server import Address, serve_app
from polar.gateway.settings import ControlSettings
from polar.store.base import Journal
from polar.tasks.problems import problems_in
from polar.types import Cancelled, Session, SessionId, TaskId

__all__ = ["ControlApp", "OpenRequest", "serve_control"]

ModelT = TypeVar("ModelT", bound=BaseModel)

_MOST_BODY_BYTES = 65536
_BODY_TIMEOUT_S = 30.0
_CLOSED_KEPT = 1000
_STATUS: tuple[tuple[type[PolarError], int], ...] = (
    (Unauthorized, 401),
    (UnknownRoute, 404),
    (RequestTooLarge, 413),
    (RequestTooSlow, 408),
    (BadRequest, 400),
    (GatewayError, 409),
    (PolarError, 500),
)


class OpenRequest(BaseModel):
    """What can be said of a session that is to be opened."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{16,200}$")
    """The session's key; absent: one is made."""
    task_id: str = Field(default="control", min_length=1)
    """What the session is about."""
    group_id: str = Field(default="control", min_length=1)
    """The group that it belongs to."""
    temperature: float | None = Field(default=None, ge=0)
    """Pinned temperature; absent: what the harness asks for."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Pinned nucleus; absent: what the harness asks for."""
    top_k: Annotated[int, Field(ge=1)] | Literal["all"] | None = None
    """Pinned number of likeliest tokens; absent: what the harness asks for."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most sampled tokens of a call."""
    max_calls: int | None = Field(default=None, ge=1)
    """Most calls of the session."""
    whole_calls: bool = False
    """Whether a tool call is only given when all of it is sampled, in every format: for a harness
    that mends and runs a call that was cut."""


@asynccontextmanager
async def serve_control(
    gateway: ModelBoundary, journal: Journal, settings: ControlSettings
) -> AsyncIterator[Address]:
    """Serve the control API until the context is left.

    Raises:
        ConfigError: The token's file cannot be used.
        GatewayError: The address cannot be used.
    """
    token = await asyncio.to_thread(load_token, settings.token_file)
    app = ControlApp(gateway, journal, token=token)
    limits = gateway.connection_limits()
    async with serve_app(app, at=(settings.host, settings.port), limits=limits) as address:
        yield address


class _HoldRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    holder: str = Field(min_length=1, max_length=100)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes


_Handler = Callable[[str, bytes], Awaitable[_Answer]]


class ControlApp:
    """An ASGI application for whoever has the token; sees only the sessions it has opened.

    Args:
        gateway: Already serving.
        journal: Where its sessions are kept.
        token: What every request has to bear.
        new_id: Makes unique ids.
    """

    def __init__(
        self,
        gateway: ModelBoundary,
        journal: Journal,
        *,
        token: str,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._gateway = gateway
        self._journal = journal
        self._token = token.encode()
        self._new_id = new_id
        self._sessions: dict[str, Session] = {}
        self._closed: OrderedDict[str, SessionUsage] = OrderedDict()
        one = r"/sessions/(?P<id>[^/]+)"
        self._routes: tuple[tuple[str, re.Pattern[str], _Handler], ...] = (
            ("GET", re.compile("/health"), self._health),
            ("GET", re.compile("/metrics"), self._metrics),
            ("POST", re.compile("/sessions"), self._open),
            ("GET", re.compile("/sessions"), self._list),
            ("GET", re.compile(one), self._show),
            ("GET", re.compile(one + "/calls"), self._calls),
            ("DELETE", re.compile(one), self._close),
            ("POST", re.compile("/pause"), self._pause),
            ("POST", re.compile("/resume"), self._resume),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            self._authenticate(scope)
            handler, name = self._route(scope["method"], scope["path"])
            answer = await handler(name, await _body(receive))
        except PolarError as error:
            answer = _refusal(error)
        await send_whole(send, answer.status, answer.body)

    def _authenticate(self, scope: Scope) -> None:
        given = bearer(read_headers(scope)) or ""
        if not hmac.compare_digest(given.encode(), self._token):
            raise Unauthorized(
                "the request does not bear the control token",
                fix="Send `Authorization: Bearer TOKEN` with the content of the token file.",
            )

    def _route(self, method: str, path: str) -> tuple[_Handler, str]:
        for allowed, pattern, handler in self._routes:
            if allowed == method and (found := pattern.fullmatch(path)):
                return handler, found.groupdict().get("id", "")
        raise UnknownRoute(
            f"there is no route {method} {path}",
            fix=f"Use one of: {', '.join(f'{m} {p.pattern}' for m, p, _ in self._routes)}.",
        )

    async def _health(self, _: str, body: bytes) -> _Answer:
        failure = self._gateway.failure
        told = {
            "status": "ok" if failure is None else "failed",
            "failure": failure and str(failure),
        }
        return _json(200 if failure is None else 503, told)

    async def _metrics(self, _: str, body: bytes) -> _Answer:
        return _json(200, await metrics(self._gateway))

    async def _open(self, _: str, body: bytes) -> _Answer:
        asked = _parsed(OpenRequest, body)
        session = Session(
            SessionId(f"control-{self._new_id()}"),
            TaskId(asked.task_id),
            asked.group_id,
            attempt=0,
            key=asked.key or secrets.token_urlsafe(24),
        )
        await self._journal.open_session(session, phase="external", step=0)
        try:
            url = await self._gateway.open(session, _policy(asked))
        except GatewayError as error:
            await self._journal.set_state(session, "cancelled", Cancelled(error.what))
            raise
        await self._journal.set_state(session, "running")
        self._sessions[session.id] = session
        base_url = f"{url}/s/{session.key}"
        return _json(201, {"id": session.id, "key": session.key, "base_url": base_url})

    async def _list(self, _: str, body: bytes) -> _Answer:
        return _json(200, {"sessions": [await self._state(name) for name in tuple(self._sessions)]})

    async def _show(self, name: str, body: bytes) -> _Answer:
        return _json(200, await self._state(name))

    async def _calls(self, name: str, body: bytes) -> _Answer:
        calls = await self._journal.calls(self._known(name))
        return _Answer(200, b'{"calls":[' + b",".join(map(call_as_json, calls)) + b"]}")

    async def _close(self, name: str, body: bytes) -> _Answer:
        session = self._sessions.pop(name, None)
        if session is None:
            raise GatewayError("the session is closed already", where=self._known(name))
        self._closed[name] = await self._gateway.usage_of(session.id)
        if len(self._closed) > _CLOSED_KEPT:
            self._closed.popitem(last=False)
        self._closed[name] = await self._gateway.close(session.id)
        outcome = Cancelled("closed through the control API, without a grade")
        await self._journal.set_state(session, "cancelled", outcome)
        return _json(200, await self._state(name))

    async def _pause(self, _: str, body: bytes) -> _Answer:
        await self._gateway.pause(_holder(body))
        return self._holds()

    async def _resume(self, _: str, body: bytes) -> _Answer:
        await self._gateway.resume(_holder(body))
        return self._holds()

    def _holds(self) -> _Answer:
        holders = sorted(self._gateway.holders)
        return _json(200, {"paused": bool(holders), "holders": holders})

    def _known(self, name: str) -> SessionId:
        if name not in self._sessions and name not in self._closed:
            raise UnknownRoute(f"no session {name} was opened here")
        return SessionId(name)

    async def _state(self, name: str) -> dict[str, object]:
        session_id = self._known(name)
        closed = self._closed.get(name)
        usage = await self._gateway.usage_of(session_id) if closed is None else closed
        return {"id": name, "state": "open" if closed is None else "closed", "usage": usage}


def _policy(asked: OpenRequest) -> SessionPolicy:
    return SessionPolicy(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        max_tokens=asked.max_tokens,
        max_calls=asked.max_calls,
        whole_calls=asked.whole_calls,
    )


async def _body(receive: Receive) -> bytes:
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            return await read_body(receive, limit_bytes=_MOST_BODY_BYTES)
    except TimeoutError as error:
        raise RequestTooSlow(f"the request was not complete after {_BODY_TIMEOUT_S:g} s") from error


def _holder(body: bytes) -> str:
    """Name a holder apart from the run's own, which nobody else may let go for."""
    return f"control:{_parsed(_HoldRequest, body).holder}"


def _parsed(model: type[ModelT], body: bytes) -> ModelT:
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        what = "; ".join(str(problem) for problem in problems_in(error, model))
        raise BadRequest(what) from None


def _refusal(error: PolarError) -> _Answer:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    told = {"type": type(error).__name__, "message": error.finding, "fix": error.fix}
    return _json(status, {"error": told})


def _json(status: int, told: object) -> _Answer:
    return _Answer(status, orjson.dumps(told, default=dict))
