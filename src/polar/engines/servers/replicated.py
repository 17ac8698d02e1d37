"""Several servers of one model as one engine: routing, moved calls, weights that all agree on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.engines.servers.events import log_event
from polar.engines.servers.following import KnownWeights, Lost, News
from polar.engines.servers.health import Health
from polar.engines.servers.member import Member, Replica, ReplicaStatus
from polar.engines.servers.routing import choose, ended, rest_of
from polar.engines.settings import ServerSettings
from polar.errors import EngineError, ModelMissing, ServerFailed, ServerLost, StaleWeights

__all__ = ["ReplicatedEngine"]


class ReplicatedEngine:
    """Samples from servers that all serve the same model with the same weights.

    Requests of the same affinity go to the same server, for its prefix cache. A call whose server
    is lost goes on at another: its prompt is then the prompt and all tokens given so far, so that
    every token is still sampled after exactly what its trace shows, and stamped with the weights
    that sampled it. What the lost server sampled but never handed over was nobody's token.

    Args:
        replicas: One engine a server.
        settings: Intervals and limits.
    """

    def __init__(self, replicas: Sequence[Replica], settings: ServerSettings) -> None:
        self._members = [Member(each) for each in replicas]
        self._settings = settings
        self._health = Health(self._members, settings)
        self._found: Capabilities | None = None
        self._closed = False

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        """Stream a continuation of `prompt_ids`; closing the iterator cancels the generation.

        Raises:
            ContextOverflow: The prompt leaves no room for one token.
            EngineError: No server could do it.
        """
        found = await self._started()
        given: list[int] = []
        version = 0
        trouble = _Trouble(self._settings.tries)
        while (reason := ended(request, given, found.max_context)) is None:
            member = await self._choose(request, trouble)
            try:
                async with _stream(member, rest_of(request, given)) as chunks:
                    async for chunk in chunks:
                        given += chunk.token_ids
                        version = chunk.weight_version
                        yield chunk
                        if chunk.finish_reason is not None:
                            return
                        trouble.forget()
                raise ServerLost("the server's stream ended before the reply did")
            except (ServerLost, ServerFailed, StaleWeights) as error:
                self._note(member, error, given, trouble)
        # A server was lost between the last token and the ending.
        yield Chunk((), (), version, reason)

    async def probe(self) -> Capabilities:
        """Let every server sample, and from now on watch their health.

        Raises:
            EngineRefused: Token ids or logprobs are missing.
            EngineError: A server cannot be reached or used, or is not like the others.
        """
        self._found = await self._health.begin()
        return self._found

    async def pause(self) -> None:
        """Freeze requests at a token boundary, on every server that serves."""
        await self._health.hold()
        await self._tell(lambda replica: replica.pause())

    async def resume(self) -> None:
        """Go on sampling.

        Before the first probe every server is told, whatever it makes of it: an earlier run may
        have been killed while it gave them weights, and a paused server can show nothing.
        """
        if self._found is None:
            await asyncio.gather(*(_caught(each.replica.resume()) for each in self._members))
            return
        await self._tell(lambda replica: replica.resume())
        self._health.let_go()

    async def load_weights(self, version: int, path: Path | None) -> None:
        """Let every server read weights from a folder that it can see, called while paused.

        A server that fails to is not used until it has them; the folder must stay as it is until
        the next pause, for servers that come back.

        Raises:
            ModelMissing: The folder holds no weights.
            EngineError: No folder was given, or no server took the weights.
        """
        if path is None:
            raise EngineError(
                "a server cannot share the trainer's memory",
                where=self._where(),
                fix="Give it a folder of weights.",
            )
        if not (await self._started()).weight_updates:
            raise EngineError(
                "the engine cannot take new weights",
                where=self._where(),
                fix="Train with an engine that can: see docs/engines.md.",
            )
        if not await asyncio.to_thread(lambda: any(path.glob("*.safetensors"))):
            raise ModelMissing("the folder holds no safetensors file", where=str(path))
        self._health.expect(version, path)
        await self._tell(lambda replica: replica.load_weights(version, path))
        await self._health.on_weights()

    def lead(
        self, on_lost: Callable[[Lost], None], on_weights: Callable[[], Awaitable[None]]
    ) -> None:
        """Have other processes told that sample from the same servers, with engines that follow.

        Args:
            on_lost: Told of every server that is lost.
            on_weights: Awaited when servers were given weights, before any of them goes on.
        """
        self._health.on_lost, self._health.on_weights = on_lost, on_weights

    def follow(self, on_lost: Callable[[Lost], None]) -> None:
        """Only sample: another process gives the servers weights, and tells of it by `hear`.

        Args:
            on_lost: Told of every server that is found to be lost here.
        """
        self._health.on_lost = on_lost

    def known_weights(self) -> KnownWeights:
        """Tell what is known of the servers' weights."""
        known = {each.address: each.replica.weights for each in self._members}
        weights = {address: each for address, each in known.items() if each is not None}
        return KnownWeights(
            self._health.version,
            {address: dict(each.labels) for address, each in weights.items()},
            {address: tuple(each.loads) for address, each in weights.items()},
        )

    async def hear(self, news: News) -> None:
        """Take what another process tells of the servers: what is lost there, is lost here."""
        if isinstance(news, Lost):
            await self._health.set_aside(news)
            return
        for member in self._members:
            weights = member.replica.weights
            if weights is not None:
                weights.follow(news.labels[member.address], news.loads[member.address])
        await self._health.follow(news.version)

    def status(self) -> tuple[ReplicaStatus, ...]:
        """Tell how each server is and what happened to it."""
        return tuple(member.status() for member in self._members)

    async def aclose(self) -> None:
        """Close all connections; open streams end with `EngineError`."""
        self._closed = True
        await self._health.aclose()
        for member in self._members:
            await member.replica.aclose()

    async def _started(self) -> Capabilities:
        if self._closed:
            raise EngineError("the engine was closed")
        return self._found or await self.probe()

    async def _choose(self, request: SampleRequest, trouble: _Trouble) -> Member:
        """Choose a server for a call, waiting for one where none serves.

        Raises:
            EngineError: None came back in time, or all have failed this very call.
        """
        while True:
            if self._closed:
                raise EngineError("the engine was closed")
            serving = [member for member in self._members if member.serving]
            able = [member for member in serving if member.address not in trouble.failed]
            if able:
                return choose(request.affinity, able)
            if serving:
                assert trouble.last is not None
                raise trouble.last
            await self._health.wait_for_one()

    def _note(
        self, member: Member, error: EngineError, given: Sequence[int], trouble: _Trouble
    ) -> None:
        """Take note of a failure; raises it again where the call cannot go on elsewhere."""
        if self._closed:
            raise EngineError("the engine was closed") from error
        if isinstance(error, ServerFailed):
            trouble.failed.add(member.address)
            member.wake.set()
        else:
            self._health.lose(member, error)
        trouble.add(error)
        if trouble.count == trouble.tries or (isinstance(error, StaleWeights) and given):
            raise error
        member.moved += 1
        log_event(member.address, "moved", f"a call, after {len(given)} tokens: {error.what}")

    async def _tell(self, command: Callable[[Replica], Coroutine[Any, Any, None]]) -> None:
        """Give all serving servers a command; those that fail it serve no longer.

        Raises:
            EngineError: None took it.
        """
        told = [member for member in self._members if member.serving]
        answers = await asyncio.gather(*(_caught(command(member.replica)) for member in told))
        for member, error in zip(told, answers, strict=True):
            if error is not None:
                self._health.lose(member, error, drop=True)
                await member.replica.drop_streams()
        failures = [error for error in answers if error is not None]
        if failures and len(failures) == len(told):
            raise failures[0]

    def _where(self) -> str:
        return ", ".join(member.address for member in self._members)


@dataclass(slots=True)
class _Trouble:
    """What went wrong with a call since its last new token."""

    tries: int
    count: int = 0
    failed: set[str] = field(default_factory=set)
    """Servers that answered that they failed."""
    last: EngineError | None = None

    def add(self, error: EngineError) -> None:
        self.count += 1
        self.last = error

    def forget(self) -> None:
        if self.count:
            self.count = 0
            self.failed.clear()


@asynccontextmanager
async def _stream(member: Member, request: SampleRequest) -> AsyncIterator[AsyncGenerator[Chunk]]:
    """Sample at a server; leaving cancels."""
    member.streams += 1
    try:
        async with aclosing(cast(AsyncGenerator[Chunk], member.replica.sample(request))) as chunks:
            yield chunks
    finally:
        member.streams -= 1


async def _caught(command: Coroutine[Any, Any, None]) -> EngineError | None:
    try:
        await command
    except EngineError as error:
        return error
    return None
