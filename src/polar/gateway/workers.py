"""A gateway in several processes, as its owner has it: who serves what, and what must be one."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from polar.engines.servers import KnownWeights, Lost, News, ReplicatedEngine
from polar.errors import GatewayError, JournalError, PolarError, StaleAttempt
from polar.gateway.boundary import RUN, Figures
from polar.gateway.closed import ClosedSessions
from polar.gateway.connections import ConnectionLimits, Cut
from polar.gateway.link import Link
from polar.gateway.messages import (
    Close,
    FiguresOf,
    Open,
    Pause,
    Ping,
    RecordingFailed,
    Resume,
    Stop,
    UsageOf,
)
from polar.gateway.pauses import Pauses
from polar.gateway.policy import SessionPolicy, SessionUsage, UsageCounter
from polar.gateway.server import Address, listen
from polar.gateway.settings import GatewaySettings
from polar.store.base import Journal, ScoreRecord
from polar.store.codec import CallRow
from polar.types import Session, SessionId

__all__ = ["RowJournal", "Spawn", "Workers"]

_log = logging.getLogger("polar.gateway")

_START_S = 120.0
_STOP_S = 15.0
_END_S = 1.0
_BACKOFF_S = (0.1, 10.0)
"""Shortest and longest time between two tries to start a worker."""

Spawn = Callable[[int, socket.socket, socket.socket], Awaitable[Process]]
"""Starts a worker's process: its number from 1, its end of the link, what it listens on."""


class RowJournal(Journal, Protocol):
    """A journal that also takes calls that another process has encoded."""

    async def add_row(self, row: CallRow) -> None:
        """Store a call that another process has encoded.

        Raises:
            JournalError: It could not be written.
        """
        ...


@dataclass(slots=True)
class _Place:
    """Where a worker listens: an address that outlives it, and stays a prepared sandbox's."""

    number: int
    listener: socket.socket
    url: str
    sessions: set[SessionId] = field(default_factory=set)
    placed: int = 0
    """Sessions that were given this place so far."""
    link: Link | None = None
    """To the worker, while it serves."""
    serving: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class _OpenSession:
    session: Session
    place: _Place
    lost: asyncio.Future[GatewayError]


class Workers:
    """Serves sessions by several processes, each on a port of its own.

    The owner keeps what must be one: the journal, pauses, and what servers' weights are.

    Args:
        leader: The engine that gives servers their weights; the workers' engines follow it.
        journal: Where calls are kept.
        settings: Intervals and limits, and how many workers.
        spawn: Starts a worker's process.
        welcome: Makes what a worker is first asked: to start. It answers when it serves.
        monotonic: Seconds that only go forward.
        answer_s: Longest wait for an answer that takes no time: a worker without it is stuck, and
            is killed.
    """

    def __init__(  # noqa: PLR0913 - the composition root hands over every collaborator by name
        self,
        leader: ReplicatedEngine,
        journal: RowJournal,
        settings: GatewaySettings,
        *,
        spawn: Spawn,
        welcome: Callable[[int, KnownWeights], object],
        monotonic: Callable[[], float] = time.monotonic,
        answer_s: float = 30.0,
    ) -> None:
        self._leader = leader
        self._journal = journal
        self._settings = settings
        self._spawn = spawn
        self._welcome = welcome
        self._answer_s = answer_s
        self._pauses = Pauses(monotonic)
        self._holders: set[str] = set()
        self._places: list[_Place] = []
        self._open: dict[SessionId, _OpenSession] = {}
        self._closed = ClosedSessions()
        self._cuts: Counter[Cut] = Counter()
        self._failure: JournalError | None = None

    @asynccontextmanager
    async def serve(self, host: str = "127.0.0.1") -> AsyncIterator[None]:
        """Start the workers, and others in place of those that die; at last close all sessions.

        Raises:
            EngineError: The engine cannot be used.
            GatewayError: A worker could not be started.
        """
        await self._leader.probe()
        self._leader.lead(self._tell_all, self._tell_weights)
        self._places = [_place(number, host) for number in range(1, self._settings.workers + 1)]
        keeping: list[asyncio.Task[None]] = []
        try:
            first = [asyncio.ensure_future(self._start(place)) for place in self._places]
            keeping = [
                asyncio.create_task(self._keep(place, started), name=f"worker {place.number}")
                for place, started in zip(self._places, first, strict=True)
            ]
            await asyncio.gather(*first)
            try:
                yield
            finally:
                while self._open:  # others may be closing theirs at the same time
                    await self.close(next(iter(self._open)))
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            for place in self._places:
                place.listener.close()

    @property
    def failure(self) -> JournalError | None:
        """The first failure to put a call on record; a run stops at it."""
        return self._failure

    @property
    def holders(self) -> frozenset[str]:
        """Who holds new calls back; nobody: calls are let through."""
        return frozenset(self._holders)

    def place(self) -> str:
        """Choose the worker with the fewest open sessions.

        Raises:
            GatewayError: The gateway does not serve yet.
        """
        if not self._places:
            raise GatewayError("the gateway does not serve yet", fix="Enter `serve()` first.")
        chosen = min(
            self._places,
            key=lambda each: (each.link is None, len(each.sessions), each.placed),
        )
        chosen.placed += 1
        return chosen.url

    async def open(self, session: Session, policy: SessionPolicy, at: str | None = None) -> str:
        """Let a session in by its key, at a worker.

        Raises:
            GatewayError: The session or key is already in use, or the worker does not serve.
        """
        if session.id in self._open or any(
            session.key == each.session.key for each in self._open.values()
        ):
            raise GatewayError("the session is open already", where=session.id)
        url = at or self.place()
        place = next(each for each in self._places if each.url == url)
        lost = asyncio.get_running_loop().create_future()
        self._closed.forget(session.id)
        self._open[session.id] = _OpenSession(session, place, lost)
        try:
            await _serving(place)
            place.sessions.add(session.id)
            await self._ask(place, Open(session, policy))
        except BaseException:
            del self._open[session.id]
            place.sessions.discard(session.id)
            if place.link is not None:  # it may have been let in, and nobody would close it
                place.link.tell(Close(session.id))
            raise
        return url

    async def close(self, session_id: SessionId) -> SessionUsage:
        """Turn a session's key away, and wait until all its calls and scores are on record.

        Raises:
            GatewayError: The session is not open.
        """
        opened = self._opened(session_id)
        del self._open[session_id]
        opened.place.sessions.discard(session_id)
        usage = await self._count(opened, Close(session_id))
        self._closed.add(session_id, usage)
        return usage

    async def lost(self, session_id: SessionId) -> GatewayError:
        """Wait until the worker that serves a session has died."""
        return await asyncio.shield(self._opened(session_id).lost)

    async def usage_of(self, session_id: SessionId) -> SessionUsage:
        """Count what a session used; also after it was closed.

        Raises:
            GatewayError: The session was never open.
        """
        closed = self._closed.find(session_id)
        if closed is not None:
            return closed
        return await self._count(self._opened(session_id), UsageOf(session_id))

    async def figures(self) -> Figures:
        """Add up what was done; connections that dead workers cut are not known any more."""
        opened = tuple(self._open.values())
        usages = [self._count(each, UsageOf(each.session.id)) for each in opened]
        totals = self._closed.totals()
        for usage in await asyncio.gather(*usages):
            totals.update(usage.counts())
        cuts = self._cuts.copy()
        for figures in await self._ask_all(FiguresOf()):
            cuts.update(figures.cut_connections)
        return Figures(len(opened), dict(totals), dict(cuts))

    async def pause(self, holder: str = RUN) -> None:
        """Hold new calls back; returns when every worker does.

        Args:
            holder: Who asks for it. Calls are let through when every holder has let go.
        """
        self._holders.add(holder)
        self._pauses.begin()
        await self._ask_all(Pause())

    async def resume(self, holder: str = RUN) -> None:
        """Let calls through again, unless others still hold them back."""
        self._holders.discard(holder)
        if self._holders:
            return
        self._pauses.end()
        await self._ask_all(Resume())

    def paused_s(self) -> float:
        """Say for how long the gateway was paused altogether, up to now."""
        return self._pauses.total_s()

    def connection_limits(self) -> ConnectionLimits:
        """Say what clients may take of time and room."""
        return self._settings.connection_limits(lambda cut: self._cuts.update([cut]))

    async def _keep(self, place: _Place, starting: asyncio.Future[_Running]) -> None:
        """See to it that a worker serves at a place, whatever becomes of it."""
        running: _Running | None = None
        wait_s = _BACKOFF_S[0]
        try:
            running = await starting
            while True:
                if running is not None:
                    await self._watch(place, running)
                    await self._bury(place, running)
                    wait_s = _BACKOFF_S[0]
                await asyncio.sleep(wait_s)
                running = None
                try:
                    running = await self._start(place)
                except (PolarError, OSError) as error:
                    wait_s = min(2 * wait_s, _BACKOFF_S[1])
                    _log.warning("worker %d of the gateway: %s", place.number, error)
        finally:
            if running is not None:
                await self._stop(place, running)

    async def _watch(self, place: _Place, running: _Running) -> None:
        """Wait until a worker has ended, and see now and then that it is not stuck."""
        while not running.ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._answer_s):
                    await running.ended.wait()
            if not running.ended.is_set():
                with suppress(GatewayError):  # it was hung up on, and ends
                    await self._ask(place, Ping())

    async def _start(self, place: _Place) -> _Running:
        """Start a worker, and wait until it serves.

        Raises:
            PolarError: It could not be started; says why.
        """
        ours, theirs = socket.socketpair()
        ended = asyncio.Event()
        link = Link(self._hears(place), ended.set)
        try:
            process = await self._spawn(place.number, theirs, place.listener)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        running = _Running(process, link, ended)
        try:
            await link.connect(ours)
            async with asyncio.timeout(_START_S):
                await link.ask(self._welcome(place.number, self._leader.known_weights()))
        except TimeoutError as error:
            await running.kill()
            raise GatewayError(
                f"worker {place.number} of the gateway did not serve within {_START_S:.0f} s",
                where=place.url,
            ) from error
        except BaseException as error:
            gone = ended.is_set()
            await running.kill()
            if gone and isinstance(error, GatewayError):
                raise GatewayError(
                    f"worker {place.number} of the gateway ended while it started"
                    f" (exit {process.returncode})",
                    where=place.url,
                    fix="See the run's log, and the system's: a full memory costs processes.",
                ) from error
            raise
        # What has happened since it was asked to start; nothing else can come between.
        link.tell(self._leader.known_weights())
        if self._holders:
            link.tell(Pause())
        place.link = link
        place.serving.set()
        return running

    async def _bury(self, place: _Place, running: _Running) -> None:
        """Take note that a worker has died: what it served is lost, what is on record stays."""
        place.link = None
        place.serving.clear()
        await running.kill()
        how = f"exit {running.process.returncode}"
        _log.warning("worker %d of the gateway has ended (%s)", place.number, how)
        for session_id in place.sessions:
            lost = self._open[session_id].lost
            if not lost.done():
                what = f"the process of the gateway that served the session has ended ({how})"
                lost.set_result(GatewayError(what, where=session_id))

    async def _stop(self, place: _Place, running: _Running) -> None:
        place.link = None
        try:
            async with asyncio.timeout(_STOP_S):
                await running.link.ask(Stop())
                await running.process.wait()
        except (TimeoutError, PolarError):
            _log.warning("worker %d of the gateway was killed at its end", place.number)
        finally:
            await running.kill()

    def _hears(self, place: _Place) -> Callable[[object], Awaitable[object]]:
        async def handle(message: object) -> None:
            match message:
                case CallRow():
                    await self._record(self._journal.add_row(message))
                case ScoreRecord():
                    await self._record(self._journal.add_score(message))
                case Lost():
                    await self._leader.hear(message)
                    self._tell_all(message, but=place)
                case RecordingFailed():
                    self._failure = self._failure or message.error
                case logging.LogRecord():
                    logging.getLogger(message.name).handle(message)

        return handle

    async def _record(self, writing: Awaitable[None]) -> None:
        try:
            await writing
        except StaleAttempt:
            raise
        except JournalError as error:
            self._failure = self._failure or error
            raise

    def _tell_all(self, news: News, *, but: _Place | None = None) -> None:
        for place in self._places:
            if place.link is not None and place is not but:
                place.link.tell(news)

    async def _tell_weights(self) -> None:
        await self._ask_all(self._leader.known_weights())

    async def _ask_all(self, message: object) -> list[Any]:
        """Ask all workers; answers of those that die meanwhile are left out."""
        serving = [place for place in self._places if place.link is not None]
        asked = [self._ask(place, message) for place in serving]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, GatewayError):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _ask(self, place: _Place, message: object) -> Any:
        """Ask one worker.

        Raises:
            GatewayError: It is gone, or does not answer: then it is hung up on, and ends.
        """
        link = place.link
        if link is None:
            raise GatewayError("a process of the gateway has ended", where=place.url)
        try:
            # Calls that are abandoned, and scores, take the time that they take; `_watch` sees
            # whether the worker is stuck.
            async with asyncio.timeout(None if isinstance(message, Close) else self._answer_s):
                return await link.ask(message)
        except TimeoutError as error:
            link.close()
            raise GatewayError("a process of the gateway is stuck", where=place.url) from error

    async def _count(self, opened: _OpenSession, question: UsageOf | Close) -> SessionUsage:
        """Ask what a session used; where its worker is gone, count what is on record."""
        if not opened.lost.done():
            with suppress(GatewayError):
                usage: SessionUsage = await self._ask(opened.place, question)
                return usage
        counter = UsageCounter()
        for call in await self._journal.calls(opened.session.id, opened.session.attempt):
            counter.add_call(call)
        return counter.usage()

    def _opened(self, session_id: SessionId) -> _OpenSession:
        opened = self._open.get(session_id)
        if opened is None:
            raise GatewayError("no such session is open", where=session_id)
        return opened


@dataclass(frozen=True, slots=True)
class _Running:
    """A worker that was started."""

    process: Process
    link: Link
    ended: asyncio.Event
    """Set when its end of the link is gone."""

    async def kill(self) -> None:
        """End it, if it has not ended yet."""
        self.link.close()
        # It ends by itself without its link. To signal a process that has just ended would take
        # its exit status away from whoever waits for it.
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self.process.wait()
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()


def _place(number: int, host: str) -> _Place:
    listener = listen(host, 0)
    return _Place(number, listener, Address(*listener.getsockname()[:2]).url)


async def _serving(place: _Place) -> None:
    """Wait for a worker that is being started anew.

    Raises:
        GatewayError: It does not come.
    """
    try:
        async with asyncio.timeout(_START_S):
            await place.serving.wait()
    except TimeoutError as error:
        raise GatewayError(
            "no process of the gateway serves there", where=place.url, fix="See the run's log."
        ) from error
