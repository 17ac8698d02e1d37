"""An engine that answers with a scripted expert's turns, for supervised warm starts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.errors import EngineError
from polar.types import Message, SessionId

__all__ = ["ExpertEngine"]


class ExpertEngine:
    """Plays back, for each session, the turns that an expert would write in this harness.

    The harness and the gateway cannot tell it from a model, so what is recorded is exactly the
    conversation a model would have had. Its logprobs are 0: it has no doubt.

    Args:
        encode: A reply -> the ids a model would sample to give it, end-of-turn token included.
        max_context: Context window to report, in tokens.
    """

    def __init__(
        self, encode: Callable[[Message], Sequence[int]], *, max_context: int = 8192
    ) -> None:
        self._encode = encode
        self._max_context = max_context
        self._scripts: dict[str, _Script] = {}

    def prepare(self, scripts: Mapping[SessionId, Sequence[Message]]) -> None:
        """Set what to answer: session id -> turns in order, from the first on in each attempt."""
        self._scripts.update({session: _Script(turns) for session, turns in scripts.items()})

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        """Answer with the session's next turn, as one chunk."""
        script = self._scripts.get(request.affinity)
        turn = None if script is None else script.next_turn(request.attempt)
        if turn is None:
            raise EngineError(
                "the expert has no further turn for this session",
                where=request.affinity,
                fix="The harness asked more often than the expert's script foresees.",
            )
        ids = _gone_on(tuple(self._encode(turn)), request)
        yield Chunk(ids, (0.0,) * len(ids), weight_version=0, finish_reason="stop")

    async def probe(self) -> Capabilities:
        """Describe the expert."""
        return Capabilities("expert", self._max_context, True, True, False, "scripted expert")

    async def pause(self) -> None:
        """Do nothing: the expert holds no weights."""

    async def resume(self) -> None:
        """Do nothing: the expert holds no weights."""

    async def load_weights(self, version: int, path: Path | None) -> None:
        """Do nothing: the expert holds no weights."""

    async def aclose(self) -> None:
        """Forget the scripts."""
        self._scripts.clear()


def _gone_on(ids: tuple[int, ...], request: SampleRequest) -> tuple[int, ...]:
    """Leave out of a reply what its prompt begins it with."""
    opening = request.opening_tokens
    begun = tuple(map(int, request.prompt_ids[len(request.prompt_ids) - opening :]))
    if ids[:opening] != begun:
        raise EngineError(
            "the expert's turn does not begin with the call that the harness asks for",
            where=request.affinity,
        )
    return ids[opening:]


class _Script:
    """The turns of a session, and how far its latest attempt is."""

    def __init__(self, turns: Sequence[Message]) -> None:
        self._turns = tuple(turns)
        self._attempt = 0
        self._given = 0

    def next_turn(self, attempt: int) -> Message | None:
        """Give the next turn of an attempt; None when there is none, or a later one has begun."""
        if attempt > self._attempt:
            self._attempt, self._given = attempt, 0
        if attempt < self._attempt or self._given == len(self._turns):
            return None
        self._given += 1
        return self._turns[self._given - 1]
