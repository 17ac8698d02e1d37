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
        self._turns: dict[str, list[Message]] = {}

    def prepare(self, scripts: Mapping[SessionId, Sequence[Message]]) -> None:
        """Set what to answer: session id -> turns in order."""
        self._turns.update({session: list(turns) for session, turns in scripts.items()})

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        """Answer with the session's next turn, as one chunk."""
        turns = self._turns.get(request.affinity)
        if not turns:
            raise EngineError(
                "the expert has no further turn for this session",
                where=request.affinity,
                fix="The harness asked more often than the expert's script foresees.",
            )
        ids = tuple(self._encode(turns.pop(0)))
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
        self._turns.clear()
