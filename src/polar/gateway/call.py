"""One call on its way: sampled, put on record, and only then finished."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, runtime_checkable

import numpy as np

from polar.engines.base import Chunk, Engine, SampleRequest, check_ids
from polar.errors import (
    BadRequest,
    ContextOverflow,
    EngineError,
    JournalError,
    PolarError,
    ReplyTooLarge,
    StaleAttempt,
    Unauthorized,
)
from polar.gateway.assembly import Assembled, Assembly
from polar.gateway.feed import Feed
from polar.gateway.pauses import Pauses
from polar.gateway.reasoning import reasoning_tokens
from polar.rendering.base import Prepared
from polar.store.base import CallRecords
from polar.types import (
    Call,
    CallId,
    CallKind,
    Capture,
    Chat,
    Delta,
    FinishReason,
    IntArray,
    Message,
    Reply,
    Sampling,
    Sent,
    Session,
    ToolCallStart,
    Usage,
)

__all__ = ["CallEnvironment", "CallListeners", "CallRequest", "RunningCall"]

_log = logging.getLogger("polar.gateway")


@dataclass(frozen=True, slots=True)
class CallEnvironment:
    """What all calls need."""

    engine: Engine
    journal: CallRecords
    pauses: Pauses
    decode: Callable[[Sequence[int]], str]
    clock: Callable[[], float]
    engine_timeout_s: float
    pause_timeout_s: float
    max_reply_bytes: int
    """UTF-8 bytes of text, reasoning and tool arguments."""
    on_failure: Callable[[JournalError], None]
    """Told when the journal can no longer be written."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """What is to be sampled."""

    id: CallId
    session: Session
    index: int
    chat: Chat
    """As the model sees it."""
    kind: CallKind
    prompt: Prepared | Callable[[IntArray], Prepared]
    """Where the engine makes the prompt: what says where its ids hang in the token tree."""
    sampling: Sampling
    """As applied: pinned, clamped, with the ids that end a turn."""
    asked: Hashable
    """Equal for requests that ask for the same."""
    sent: Sent | None = None
    """What the harness sent, where interceptors changed it."""
    model: str | None = None
    """The model to sample from; absent: the one that is trained."""
    capture: Capture = "tokens"

    @property
    def rendered(self) -> bool:
        """Whether the prompt is made here, and so known before the engine is asked."""
        return isinstance(self.prompt, Prepared)


@dataclass(frozen=True, slots=True)
class CallListeners:
    """Who is told what happens to a call."""

    on_recorded: Callable[[Call, Assembled], None]
    """Called when it is on record, with what became of its tokens."""
    on_refused: Callable[[PolarError], None]
    """Called when an engine that makes the prompt would not begin: there is no call then."""
    on_deserted: Callable[[RunningCall], None]
    """Called when the last client has left."""
    on_done: Callable[[RunningCall], None]
    """Called when nothing more will come, just before the clients are told."""


class RunningCall:
    """Samples one reply in a task of its own, which outlives any client.

    Args:
        request: What to sample.
        assembly: Parses and cuts the reply.
        environment: What all calls need.
        listeners: Who is told what happens to it.
    """

    def __init__(
        self,
        request: CallRequest,
        assembly: Assembly,
        environment: CallEnvironment,
        listeners: CallListeners,
    ) -> None:
        self.request = request
        self.feed = Feed(lambda: listeners.on_deserted(self))
        self._assembly = assembly
        prompt = request.prompt
        if isinstance(prompt, Prepared):
            self.feed.put(assembly.feed(prompt.opening_ids.tolist()))
        self._environment = environment
        self._listeners = listeners
        self._started_at = environment.clock()
        self._chunks: list[Chunk] = []
        self._given_bytes = 0
        self._interruption: PolarError | None = None
        self._abandoned = False
        self._started = False
        self._sampled_to_end = False
        self._heard_at = 0.0
        self._watchdog: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._run(), name=request.id)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt: 0 as long as only the engine knows it."""
        prompt = self.request.prompt
        return len(prompt.prompt_ids if isinstance(prompt, Prepared) else self._told_prompt())

    def abandon(self, reason: PolarError) -> bool:
        """Stop sampling; what was sampled so far goes on record as abandoned.

        Returns:
            False when it is too late: all is sampled, the call goes on record as it is.
        """
        if self._sampled_to_end:
            return False
        self._abandoned = True
        self._interrupt(reason)
        return True

    async def wait_recorded(self) -> None:
        """Wait until the call is on record and its task has ended."""
        await asyncio.wait([self._task])

    def suspend_timeout(self) -> None:
        """Stop the engine's clock: the engine is about to pause."""
        if self._watchdog is not None:
            self._watchdog.cancel()

    def restart_timeout(self) -> None:
        """Give the engine its full time again."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._heard_at = asyncio.get_running_loop().time()
            self._watch()

    async def _run(self) -> None:
        ending = await self._sample_to_end()
        try:
            result = await self._end(ending)
        except Exception as error:
            _log.exception("call %s of session %s", self.request.id, self.request.session.id)
            result = self._unrecorded(JournalError(f"a call was not recorded: {error!r}"))
        self._listeners.on_done(self)
        self.feed.finish(result)

    async def _sample_to_end(self) -> FinishReason | PolarError:
        """Sample until there is no more, whatever the reason; never raises."""
        if self._interruption is not None:
            return self._interruption  # before the first step of this task
        self._started = True
        try:
            await self._wait_open()
            return await self._sample()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._interruption is None or task is None:
                raise
            task.uncancel()
            return self._interruption
        except PolarError as error:
            return error
        except Exception:
            _log.exception("call %s of session %s", self.request.id, self.request.session.id)
            return PolarError("the call failed unexpectedly", where=self.request.id)
        finally:
            self._sampled_to_end = True

    async def _wait_open(self) -> None:
        try:
            await self._environment.pauses.wait_open(timeout_s=self._environment.pause_timeout_s)
        except TimeoutError as error:
            raise EngineError("the engine was paused for too long") from error

    async def _sample(self) -> FinishReason:
        prompt = self.request.prompt
        request = SampleRequest(
            prompt_ids=prompt.prompt_ids if isinstance(prompt, Prepared) else (),
            sampling=self.request.sampling,
            affinity=self.request.session.id,
            id=self.request.id,
            model=self.request.model,
            attempt=self.request.session.attempt,
            chat=None if self.request.rendered else self.request.chat,
            opening_tokens=prompt.opening_tokens if isinstance(prompt, Prepared) else 0,
        )
        now = asyncio.get_running_loop().time
        async with self._watched(), _closing(self._environment.engine.sample(request)) as chunks:
            async for chunk in chunks:
                self._heard_at = now()
                _check(chunk)
                self._chunks.append(chunk)
                self._give(self._assembly.feed(chunk.token_ids))
                if chunk.deltas:
                    self._give(self._assembly.take(chunk.deltas))
                if self._assembly.stopped:
                    return "stop"
                if chunk.finish_reason is not None:
                    return chunk.finish_reason
        raise EngineError("the engine ended its stream without a finish reason")

    def _give(self, deltas: Sequence[Delta]) -> None:
        """Let the clients have what is new, unless it is too much."""
        self._given_bytes += sum(map(_size_bytes, deltas))
        limit = self._environment.max_reply_bytes
        if self._given_bytes > limit:
            self._abandoned = True
            raise ReplyTooLarge(
                f"the reply grew larger than {limit} bytes",
                fix="Ask for fewer tokens, or raise `gateway.max_reply_mb`.",
            )
        self.feed.put(deltas)

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Interrupt the body when the engine is silent for too long."""
        self._heard_at = asyncio.get_running_loop().time()
        self._watch()
        try:
            yield
        finally:
            if self._watchdog is not None:
                self._watchdog.cancel()
            self._watchdog = None

    def _watch(self) -> None:
        """Look again when the engine's time is up; one timer a call, not one a token."""
        loop = asyncio.get_running_loop()
        due_at = self._heard_at + self._environment.engine_timeout_s
        if loop.time() >= due_at:
            self._interrupt(EngineError("the engine gave no token in time"))
            return
        self._watchdog = loop.call_at(due_at, self._watch)
        if self._environment.pauses.paused:
            self._watchdog.cancel()

    def _interrupt(self, reason: PolarError) -> None:
        """End the sampling for a reason; the first one stays."""
        if self._interruption is None and not self._sampled_to_end:
            self._interruption = reason
            if self._started:
                self._task.cancel()

    async def _end(self, ending: FinishReason | PolarError) -> Reply | PolarError:
        """Put the call on record, unless the engine that was to make its prompt would not."""
        refused = isinstance(ending, BadRequest | ContextOverflow)
        if refused and not (self.request.rendered or self._chunks):
            assert isinstance(ending, PolarError)
            self._listeners.on_refused(ending)
            return ending
        return await self._record(ending)

    async def _record(self, ending: FinishReason | PolarError) -> Reply | PolarError:
        assembled = self._assembly.finish()
        self.feed.put(assembled.last_deltas)
        call = self._call(assembled, self._finish_reason(ending, assembled))
        try:
            await self._environment.journal.add_call(call)
        except JournalError as error:
            return self._unrecorded(error)
        self._listeners.on_recorded(call, assembled)
        if isinstance(ending, PolarError):
            return ending
        usage = self._usage(call, assembled.sampled)
        return Reply(assembled.given, call.finish_reason, usage, assembled.stop_string)

    def _usage(self, call: Call, sampled: Message) -> Usage:
        told = self._chunks[-1].usage if self._chunks else None
        if told is not None:
            return told
        return Usage(
            len(call.prompt_ids),
            len(call.sampled_ids),
            self._cached_tokens(),
            reasoning_tokens(call.sampled_ids, sampled, self._environment.decode),
        )

    def _finish_reason(
        self, ending: FinishReason | PolarError, assembled: Assembled
    ) -> FinishReason:
        if isinstance(ending, PolarError):
            return "abandoned" if self._abandoned else "error"
        if assembled.stop_string is not None:
            return "stop"
        return "tool_calls" if ending == "stop" and assembled.given.tool_calls else ending

    def _call(self, assembled: Assembled, finish_reason: FinishReason) -> Call:
        request = self.request
        chunks = self._chunks
        prepared = self._prepared()
        sampled = list(chain.from_iterable(chunk.token_ids for chunk in chunks))
        logprobs = list(chain.from_iterable(chunk.logprobs for chunk in chunks))
        versions = [chunk.weight_version for chunk in chunks]
        lengths = np.array([len(chunk.token_ids) for chunk in chunks], dtype=np.intp)
        return Call(
            id=request.id,
            session_id=request.session.id,
            attempt=request.session.attempt,
            index=request.index,
            parent_id=prepared.parent_id,
            prompt_ids=prepared.prompt_ids,
            sampled_ids=np.array(sampled, dtype=np.int32),
            logprobs=np.array(logprobs, dtype=np.float32),
            weight_versions=np.repeat(np.array(versions, dtype=np.int32), lengths),
            messages=request.chat.messages,
            tools=request.chat.tools,
            sampling=request.sampling,
            reply=assembled.given,
            finish_reason=finish_reason,
            kind=request.kind,
            fork_reason=prepared.fork_reason,
            measured_tokens=sum(chunk.measured_tokens for chunk in chunks),
            discarded_tokens=sum(chunk.discarded_tokens for chunk in chunks),
            opening_tokens=prepared.opening_tokens,
            started_at=self._started_at,
            ended_at=self._environment.clock(),
            sent=request.sent,
            capture=request.capture,
        )

    def _prepared(self) -> Prepared:
        """Give the prompt as it is known when all is sampled."""
        prompt = self.request.prompt
        if isinstance(prompt, Prepared):
            return prompt
        return prompt(np.array(self._told_prompt(), dtype=np.int32))

    def _told_prompt(self) -> tuple[int, ...]:
        return next((chunk.prompt_ids for chunk in self._chunks if chunk.prompt_ids), ())

    def _cached_tokens(self) -> int:
        return self._chunks[0].cached_tokens if self._chunks else 0

    def _unrecorded(self, error: JournalError) -> PolarError:
        """Say that the call counts for nothing, because it could not be recorded."""
        if isinstance(error, StaleAttempt):
            return Unauthorized("the session has ended")
        self._environment.on_failure(error)
        return PolarError("the call could not be put on record, so its reply is not given")


def _check(chunk: Chunk) -> None:
    """Refuse tokens that could not be trained on, before anything is made of them."""
    if len(chunk.logprobs) != len(chunk.token_ids):
        raise EngineError(
            f"the engine told {len(chunk.token_ids)} tokens with {len(chunk.logprobs)} logprobs"
        )
    if not all(map(math.isfinite, chunk.logprobs)):
        raise EngineError("the engine told a logprob that is no finite number")
    check_ids(chunk)


def _size_bytes(delta: Delta) -> int:
    return 0 if isinstance(delta, ToolCallStart) else len(delta.text.encode())


@runtime_checkable
class _Closable(Protocol):
    async def aclose(self) -> None: ...


@asynccontextmanager
async def _closing(chunks: AsyncIterator[Chunk]) -> AsyncIterator[AsyncIterator[Chunk]]:
    """Close a stream of chunks however it is left: that is what cancels the generation."""
    try:
        yield chunks
    finally:
        # Looked at first, for it is quick: a protocol is compared name by name.
        if isinstance(chunks, AsyncGenerator | _Closable):
            await chunks.aclose()
