"""Watches servers: who serves, who is lost, and how a lost one comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from polar.engines.base import Capabilities
from polar.engines.servers.events import EventName, log_event
from polar.engines.servers.following import Lost
from polar.engines.servers.member import Member
from polar.engines.settings import ServerSettings
from polar.errors import EngineError, ServerLost

__all__ = ["Health"]

_FIRST_BACKOFF_S = 0.1
_STANDSTILL_S = 1.0
"""Longest time between two tries as long as no server serves: all calls wait for that."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """What every server must sample from."""

    version: int
    path: Path | None
    """Absent: what the servers were started with."""


class Health:
    """Keeps the state of servers; a lost one serves again only after it sampled, with the weights.

    Args:
        members: The servers.
        settings: Intervals and limits.
    """

    def __init__(self, members: Sequence[Member], settings: ServerSettings) -> None:
        self._members = members
        self._settings = settings
        self._weights = _Weights(0, None)
        self._updating = asyncio.Lock()
        self._running = asyncio.Event()
        self._running.set()
        self._any_serves = asyncio.Event()
        self._beginning = asyncio.Lock()
        self._found: Capabilities | None = None
        self._watching: asyncio.Task[None] | None = None
        self._follows = False
        self.on_lost: Callable[[Lost], None] = lambda lost: None
        """Told of every server that was found to be lost here."""
        self.on_weights: Callable[[], Awaitable[None]] = _tell_nobody
        """Awaited when servers were given weights, before they go on, and when one serves again."""

    @property
    def version(self) -> int:
        """Version of the weights that every server must sample from."""
        return self._weights.version

    async def follow(self, version: int) -> None:
        """Leave it to another process to give servers weights; use those only that have them.

        Lost servers are looked at at once: it may be one of them that was given its weights.

        Args:
            version: Of the weights that a server must sample from.
        """
        self._follows = True
        self._weights = _Weights(version, None)
        stale = [each for each in self._members if each.replica.weight_version != version]
        for member in stale:
            await self.set_aside(Lost(member.address, "the server has other weights", drop=True))
        for member in self._members:
            if not member.serving:
                member.failures = 0
                member.wake.set()

    async def set_aside(self, lost: Lost) -> None:
        """Let a server serve no longer that another process found to be lost."""
        for member in self._members:
            if member.address == lost.address and member.serving:
                self._lose(member, lost.reason)
                if lost.drop:
                    await member.replica.drop_streams()

    async def begin(self) -> Capabilities:
        """Probe every server; the first time, let them all serve and watch them.

        Raises:
            EngineError: A server cannot be reached or used, or is not like the others.
        """
        async with self._beginning:
            answers = await asyncio.gather(
                *(member.replica.probe() for member in self._members), return_exceptions=True
            )
            found = [answer for answer in answers if isinstance(answer, Capabilities)]
            for answer in answers:
                if isinstance(answer, BaseException) and not (self._follows and found):
                    raise answer
            if self._watching is None:
                self._found = _together(found, self._where())
                if len({each.weights for each in found}) > 1 and not self._follows:
                    raise EngineError(
                        "the servers do not have the same weights",
                        where=self._where(),
                        fix="Start them anew, from the same folder.",
                    )
                for member, answer in zip(self._members, answers, strict=True):
                    if isinstance(answer, Capabilities) and self._may_serve(member):
                        self._serve(member)
                self._watching = asyncio.create_task(self._watch_all(), name="engine health")
            assert self._found is not None
            return self._found

    def lose(self, member: Member, error: EngineError, *, drop: bool = False) -> None:
        """Let a server serve no longer, and try to bring it back.

        Args:
            member: The server.
            error: Why.
            drop: The caller gives up its running calls, and so must others.
        """
        if member.serving:
            self._lose(member, error.what)
            self.on_lost(Lost(member.address, error.what, drop))

    def _lose(self, member: Member, reason: str) -> None:
        member.serving = False
        member.losses += 1
        member.reason = reason
        member.wake.set()
        if not self._one_serves():
            self._any_serves.clear()
            for other in self._members:
                other.wake.set()
        self._log(member, "lost", reason)

    async def wait_for_one(self) -> None:
        """Wait until a server serves; pauses do not count.

        Raises:
            ServerLost: None did in time.
        """
        await self._running.wait()
        limit_s = self._settings.lost_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._any_serves.wait()
        except TimeoutError as error:
            reasons = "; ".join(f"{each.address}: {each.reason}" for each in self._members)
            raise ServerLost(
                f"no server of the engine came back within {limit_s:.0f} s ({reasons})",
                fix="See `polar doctor --engine-url` and the servers' own logs.",
            ) from error

    async def hold(self) -> None:
        """Give no server weights until `let_go`: what the folder holds will change."""
        self._running.clear()
        async with self._updating:
            pass

    def let_go(self) -> None:
        """Bring lost servers back again."""
        self._running.set()

    def expect(self, version: int, path: Path) -> None:
        """Say what a server must sample from to serve."""
        self._weights = _Weights(version, path)

    async def aclose(self) -> None:
        """Stop watching; whoever waits for a server is woken."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        self._running.set()
        self._any_serves.set()

    async def _watch_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for member in self._members:
                group.create_task(self._watch(member))

    async def _watch(self, member: Member) -> None:
        """Look at a server now and then, and at once when somebody noticed something."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._delay_s(member)):
                    await member.wake.wait()
            member.wake.clear()
            await self._running.wait()
            try:
                await (self._check(member) if member.serving else self._bring_back(member))
                member.failures = 0
            except EngineError as error:
                await self._failed(member, error)

    def _delay_s(self, member: Member) -> float:
        if member.serving:
            return self._settings.check_interval_s
        longest_s = self._settings.backoff_s
        if not self._one_serves():
            longest_s = min(longest_s, _STANDSTILL_S)
        return min(longest_s, _FIRST_BACKOFF_S * 2.0 ** min(member.failures, 20))

    async def _check(self, member: Member) -> None:
        async with _limit(self._settings.check_timeout_s, member):
            await member.replica.check()

    async def _failed(self, member: Member, error: EngineError) -> None:
        """Count a failure; after some, the server's calls go elsewhere."""
        member.failures += 1
        if not member.serving:
            member.reason = error.what
        if member.failures < self._settings.failed_checks:
            return
        self.lose(member, error, drop=True)
        await member.replica.drop_streams()

    async def _bring_back(self, member: Member) -> None:
        """Let a server serve again, if it is what it was and once it has the weights.

        Raises:
            EngineError: It does not answer, is another model, or does not take the weights.
        """
        assert self._found is not None
        async with _limit(self._settings.probe_timeout_s, member):
            if self._found.weight_updates and not self._follows:
                await member.replica.resume()  # it may have been lost while it was paused
            found = await member.replica.probe()
        _together([self._found, found], member.address)
        async with self._updating:
            if not self._running.is_set():
                member.wake.set()  # again after the pause, with what it brings
                return
            if member.replica.weight_version != self._weights.version:
                await self._bring_up_to_date(member)
            self._serve(member)
        self._log(member, "returned", f"weight version {self._weights.version}")
        await self.on_weights()

    async def _bring_up_to_date(self, member: Member) -> None:
        weights = self._weights
        if self._follows:
            raise EngineError("the server has yet to be given its weights", where=member.address)
        if weights.path is None:
            raise EngineError("the server has other weights than the rest", where=member.address)
        await member.replica.pause()
        await member.replica.load_weights(weights.version, weights.path)
        await self.on_weights()
        await member.replica.resume()

    def _serve(self, member: Member) -> None:
        member.serving = True
        self._any_serves.set()

    def _one_serves(self) -> bool:
        return any(each.serving for each in self._members)

    def _may_serve(self, member: Member) -> bool:
        """Tell whether a server that was probed can serve: whoever leads has looked already."""
        return not self._follows or member.replica.weight_version == self._weights.version

    def _log(self, member: Member, event: EventName, detail: str) -> None:
        """Log an event; of several processes that see the same, the one that leads."""
        if not self._follows:
            log_event(member.address, event, detail)

    def _where(self) -> str:
        return ", ".join(member.address for member in self._members)


async def _tell_nobody() -> None:
    """Tell nobody."""


@asynccontextmanager
async def _limit(seconds: float, member: Member) -> AsyncIterator[None]:
    """Let the body take no longer than this."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise ServerLost(
            f"the server gave no answer within {seconds:.0f} s", where=member.address
        ) from error


def _together(found: Sequence[Capabilities], where: str) -> Capabilities:
    """Say what several servers can do together.

    Raises:
        EngineError: They are not alike.
    """
    first = found[0]
    if any((each.model, each.max_context) != (first.model, first.max_context) for each in found):
        raise EngineError("the servers do not serve the same model", where=where)
    common = [name for name in first.other_models if all(name in f.other_models for f in found)]
    details = "; ".join(each.detail for each in found)
    return replace(
        first,
        token_ids=all(each.token_ids for each in found),
        logprobs=all(each.logprobs for each in found),
        weight_updates=all(each.weight_updates for each in found),
        other_models=tuple(common),
        detail=details if len(found) == 1 else f"{len(found)} servers: {details}",
    )
