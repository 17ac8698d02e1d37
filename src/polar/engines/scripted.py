"""An engine that says what it is told: for tests, dry runs and documentation."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Literal

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.errors import ContextOverflow, EngineError

__all__ = ["Script", "ScriptedEngine", "scripted_logprob"]

Script = Callable[[Sequence[int]], Sequence[int] | Exception]
"""Prompt ids -> the reply's ids, or what the engine fails with."""


class ScriptedEngine:
    """Replies by a script, with logprobs that follow from position and token alone.

    Args:
        script: A function of the prompt, or replies in the order of the requests; an exception in
            place of a reply is raised. When the replies are used up, `EngineError` is.
        chunk_tokens: Tokens in a chunk.
        gate: Waited for before each chunk; absent: nothing is waited for.
        max_context: The context window, in tokens.
    """

    def __init__(
        self,
        script: Script | Sequence[Sequence[int] | Exception],
        *,
        chunk_tokens: int = 8,
        gate: asyncio.Event | None = None,
        max_context: int = 8192,
    ) -> None:
        self._script = script if callable(script) else _in_order(script)
        self._chunk_tokens = chunk_tokens
        self._gate = gate
        self._max_context = max_context
        self._running = asyncio.Event()
        self._running.set()
        self._version = 0
        self._closed = False
        self.requests: list[SampleRequest] = []
        """Every request, in order of arrival."""
        self.cancelled: list[SampleRequest] = []
        """Requests whose consumer left before the end."""

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        """Stream the script's reply to a prompt.

        Raises:
            ContextOverflow: The prompt leaves no room for one token.
            EngineError: The script has ended, or the engine was closed.
            Exception: What the script says.
        """
        self.requests.append(request)
        prompt_tokens = len(request.prompt_ids)
        if prompt_tokens >= self._max_context:
            raise ContextOverflow(prompt_tokens=prompt_tokens, max_context=self._max_context)
        reply = self._script([int(token_id) for token_id in request.prompt_ids])
        if isinstance(reply, Exception):
            raise reply
        limits = [self._max_context - prompt_tokens, request.sampling.max_tokens]
        ids, reason = _cut(
            reply,
            min(limit for limit in limits if limit is not None),
            request.sampling.stop_token_ids,
        )
        try:
            for start in range(0, max(len(ids), 1), self._chunk_tokens):
                await self._turn()
                part = ids[start : start + self._chunk_tokens]
                last = start + self._chunk_tokens >= len(ids)
                yield Chunk(
                    token_ids=tuple(part),
                    logprobs=tuple(
                        scripted_logprob(position, token)
                        for position, token in enumerate(part, start)
                    ),
                    weight_version=self._version,
                    finish_reason=reason if last else None,
                )
        except GeneratorExit:
            self.cancelled.append(request)
            raise

    async def probe(self) -> Capabilities:
        """Tell what the engine is; the script is not asked."""
        return Capabilities("scripted", self._max_context, True, True, True, "scripted engine")

    async def pause(self) -> None:
        """Hold the next chunks back."""
        self._running.clear()

    async def resume(self) -> None:
        """Let chunks go again."""
        self._running.set()

    async def load_weights(self, version: int, path: Path | None) -> None:
        """Stamp the next tokens with another version."""
        self._version = version

    async def aclose(self) -> None:
        """End open streams and refuse new ones."""
        self._closed = True
        self._running.set()
        if self._gate is not None:
            self._gate.set()

    async def _turn(self) -> None:
        if self._gate is not None:
            await self._gate.wait()
        await self._running.wait()
        if self._closed:
            raise EngineError("the engine was closed")


def scripted_logprob(position: int, token_id: int) -> float:
    """Give the logprob of a token at a place in a reply: a function, so that tests can tell it."""
    return math.log(1.0 / (2 + (7 * position + token_id) % 11))


def _in_order(replies: Sequence[Sequence[int] | Exception]) -> Script:
    left = deque(replies)

    def script(prompt_ids: Sequence[int]) -> Sequence[int] | Exception:
        return left.popleft() if left else EngineError("the script has no further reply")

    return script


def _cut(
    reply: Sequence[int], limit: int, stop_token_ids: Sequence[int]
) -> tuple[Sequence[int], Literal["stop", "length"]]:
    """End a reply behind its first stop token or at the limit, as sampling would."""
    for count, token in enumerate(reply[:limit], 1):
        if token in stop_token_ids:
            return reply[:count], "stop"
    return reply[:limit], "length" if len(reply) > limit else "stop"
