"""The gateway as its owner sees it: serve, open and close sessions, pause."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from polar import dialects
from polar.dialects import Dialect
from polar.engines.base import Capabilities, Engine
from polar.errors import EngineRefused, GatewayError, JournalError
from polar.gateway.boundary import RUN, Figures
from polar.gateway.call import CallEnvironment
from polar.gateway.closed import ClosedSessions
from polar.gateway.connections import ConnectionLimits, Cut
from polar.gateway.http import GatewayApp
from polar.gateway.interception import Interception
from polar.gateway.pauses import Pauses
from polar.gateway.policy import SessionPolicy, SessionUsage
from polar.gateway.scoring import Scoring
from polar.gateway.server import Address, serve_app
from polar.gateway.session import OpenSession, SessionEnvironment
from polar.gateway.settings import GatewaySettings
from polar.rendering.base import Renderer
from polar.store.base import CallRecords
from polar.types import Capture, Session, SessionId

__all__ = ["Gateway"]


class Gateway:
    """Serves the model to harnesses, and puts every call on record before its last byte leaves.

    Args:
        engine: Samples tokens.
        renderer: Turns messages into tokens and back, for the engine's model.
        journal: Where calls are kept.
        settings: Intervals and limits.
        wire_formats: The dialects that are served; absent: all there are.
        clock: Unix seconds.
        monotonic: Seconds that only go forward.
        new_id: Makes unique ids.
        on_failure: Told when calls can no longer be put on record.
    """

    def __init__(  # noqa: PLR0913 - the composition root hands over every collaborator by name
        self,
        engine: Engine,
        renderer: Renderer,
        journal: CallRecords,
        settings: GatewaySettings | None = None,
        *,
        wire_formats: Sequence[Dialect] | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        on_failure: Callable[[JournalError], None] = lambda error: None,
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._settings = settings or GatewaySettings()
        self._new_id = new_id
        self._on_failure = on_failure
        self._interception = Interception.of(self._settings.interceptors)
        spec = self._settings.scorer
        self._scoring = None if spec is None else Scoring.of(spec, journal, on_failure=self._fail)
        self._pauses = Pauses(monotonic)
        self._holders: set[str] = set()
        self._calls = CallEnvironment(
            engine=engine,
            journal=journal,
            pauses=self._pauses,
            decode=renderer.decode,
            clock=clock,
            engine_timeout_s=self._settings.engine_timeout_s,
            pause_timeout_s=self._settings.pause_timeout_s,
            max_reply_bytes=int(self._settings.max_reply_mb * 2**20),
            on_failure=self._fail,
        )
        self._capabilities: Capabilities | None = None
        self._url: str | None = None
        self._by_key: dict[str, OpenSession] = {}
        self._by_id: dict[SessionId, OpenSession] = {}
        self._closed = ClosedSessions()
        self._failure: JournalError | None = None
        self._cuts: Counter[Cut] = Counter()
        self._app = GatewayApp(
            wire_formats or [dialects.load(name) for name in dialects.names()],
            find_session=self._by_key.get,
            model=lambda: self._probed().model,
            settings=self._settings,
            clock=clock,
        )

    @property
    def failure(self) -> JournalError | None:
        """The first failure to put a call on record; a run stops at it."""
        return self._failure

    @property
    def cut_connections(self) -> Mapping[Cut, int]:
        """Count the connections that were cut because the client was too slow, by reason."""
        return dict(self._cuts)

    @property
    def capabilities(self) -> Capabilities:
        """What the engine said of itself when serving began.

        Raises:
            GatewayError: The gateway does not serve yet.
        """
        return self._probed()

    @asynccontextmanager
    async def serve(
        self, host: str = "127.0.0.1", port: int = 0, *, listener: socket.socket | None = None
    ) -> AsyncIterator[Address]:
        """Probe the engine and listen until the context is left; then close all sessions.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0 chooses a free one.
            listener: What listens already, in place of these.

        Raises:
            EngineRefused: The engine tells no token ids or no logprobs.
            EngineError: The engine cannot be used.
            GatewayError: The address cannot be used.
        """
        self._capabilities = await _probe(self._engine)
        async with serve_app(
            self._app, at=listener or (host, port), limits=self.connection_limits()
        ) as address:
            self._url = address.url
            try:
                yield address
            finally:
                while self._by_id:  # others may be closing theirs at the same time
                    await self.close(next(iter(self._by_id)))

    def place(self) -> str:
        """Say where sessions are served.

        Raises:
            GatewayError: The gateway does not serve yet.
        """
        self._probed()
        assert self._url is not None
        return self._url

    async def open(self, session: Session, policy: SessionPolicy, at: str | None = None) -> str:
        """Let a session in by its key, and say where: there is one place.

        Raises:
            GatewayError: The gateway does not serve yet, or the session or key is already in use.
        """
        if session.id in self._by_id or session.key in self._by_key:
            raise GatewayError("the session is open already", where=session.id)
        probed = self._probed()
        environment = SessionEnvironment(
            calls=self._calls,
            renderer=self._renderer,
            interception=self._interception,
            scoring=self._scoring,
            models=(probed.model, *probed.other_models),
            max_context=probed.max_context,
            capture=_capture(probed),
            disconnect_grace_s=self._settings.disconnect_grace_s,
            new_id=self._new_id,
        )
        opened = OpenSession(session, policy, environment)
        self._closed.forget(session.id)
        self._by_id[session.id] = self._by_key[session.key] = opened
        return self.place()

    async def close(self, session_id: SessionId) -> SessionUsage:
        """Turn a session's key away, abandon its running calls and wait until all is on record.

        That is its calls, and their scores where calls are scored.

        Raises:
            GatewayError: The session is not open.
        """
        opened = self._open_session(session_id)
        del self._by_id[session_id], self._by_key[opened.session.key]
        await opened.aclose()
        usage = opened.usage()
        self._closed.add(session_id, usage)
        return usage

    async def lost(self, session_id: SessionId) -> GatewayError:
        """Wait for ever: this process serves all sessions, or is no more."""
        never: asyncio.Future[GatewayError] = asyncio.get_running_loop().create_future()
        return await never

    async def figures(self) -> Figures:
        """Add up what was done."""
        totals = self._closed.totals()
        for session in self._by_id.values():
            totals.update(session.usage().counts())
        return Figures(len(self._by_id), dict(totals), self.cut_connections)

    async def usage_of(self, session_id: SessionId) -> SessionUsage:
        """Count what a session used; also after it was closed.

        Raises:
            GatewayError: The session was never open.
        """
        return self.usage(session_id)

    def usage(self, session_id: SessionId) -> SessionUsage:
        """Count what a session used; also after it was closed.

        Raises:
            GatewayError: The session was never open.
        """
        closed = self._closed.find(session_id)
        return self._open_session(session_id).usage() if closed is None else closed

    @property
    def holders(self) -> frozenset[str]:
        """Who holds new calls back; nobody: calls are let through."""
        return frozenset(self._holders)

    async def pause(self, holder: str = RUN) -> None:
        """Hold new calls back; running ones go on as far as the engine does.

        Args:
            holder: Who asks for it. Calls are let through when every holder has let go.
        """
        self._holders.add(holder)
        self._pauses.begin()
        for session in self._by_id.values():
            session.suspend_timeouts()

    async def resume(self, holder: str = RUN) -> None:
        """Let calls through again, unless others still hold them back."""
        self._holders.discard(holder)
        if self._holders:
            return
        self._pauses.end()
        for session in self._by_id.values():
            session.restart_timeouts()

    def paused_s(self) -> float:
        """Say for how long the gateway was paused altogether, up to now."""
        return self._pauses.total_s()

    def _open_session(self, session_id: SessionId) -> OpenSession:
        opened = self._by_id.get(session_id)
        if opened is None:
            raise GatewayError("no such session is open", where=session_id)
        return opened

    def _probed(self) -> Capabilities:
        if self._capabilities is None:
            raise GatewayError("the gateway does not serve yet", fix="Enter `serve()` first.")
        return self._capabilities

    def connection_limits(self) -> ConnectionLimits:
        """Say what clients may take of time and room."""
        return self._settings.connection_limits(lambda cut: self._cuts.update([cut]))

    def _fail(self, error: JournalError) -> None:
        self._failure = self._failure or error
        self._on_failure(error)


def _capture(probed: Capabilities) -> Capture:
    if not probed.renders:
        return "tokens"
    return "recorded" if probed.token_ids and probed.logprobs else "text"


async def _probe(engine: Engine) -> Capabilities:
    capabilities = await engine.probe()
    missing = [
        name
        for name, present in (
            ("token ids", capabilities.token_ids),
            ("logprobs", capabilities.logprobs),
        )
        if not present
    ]
    # One that renders refuses it itself, unless it is told to keep the text alone.
    if missing and not capabilities.renders:
        raise EngineRefused(
            f"the engine tells no {' and no '.join(missing)}, so its samples cannot be trained on",
            where=capabilities.detail or capabilities.model,
            fix="Use an engine that returns both.",
        )
    return capabilities
