"""What an engine is: something that samples tokens after tokens and says how likely each was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from polar.errors import EngineError
from polar.types import Chat, Delta, Sampling, TokenIds, Usage

__all__ = ["Capabilities", "Chunk", "Engine", "SampleRequest", "check_ids"]

_LARGEST_ID = 2**31 - 1
"""Ids are stored in 32 bits."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One request to sample a continuation."""

    prompt_ids: TokenIds
    """Empty for an engine that renders, which takes `chat`."""
    sampling: Sampling
    affinity: str = ""
    """Requests with the same value share a prefix: a session's calls (cache and routing hint)."""
    id: str = ""
    model: str | None = None
    """One of the engine's other models; absent: the one whose weights are trained."""
    attempt: int = 0
    """Which attempt of the session asks."""
    chat: Chat | None = None
    """The conversation, for an engine that renders."""
    opening_tokens: int = 0
    """How many of the prompt's last tokens begin the reply."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some newly sampled tokens; the last chunk of a stream carries the finish reason."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural log, of the distribution that was sampled from."""
    weight_version: int
    finish_reason: Literal["stop", "length"] | None = None
    """`stop`: the last token is one of `stop_token_ids`; `length`: `max_tokens` or the window."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed again (told on the first chunk)."""
    prompt_ids: tuple[int, ...] = ()
    """The prompt that the engine made, told once before any token, by one that renders."""
    deltas: tuple[Delta, ...] = ()
    """What the reply says, from an engine that tells no ids."""
    usage: Usage | None = None
    """Counts of tokens, on the last chunk of an engine that tells no ids."""
    measured_tokens: int = 0
    """Those of `token_ids` whose logprob was not told with them: it was asked for afterwards, of
    the same weights after the same tokens."""
    discarded_tokens: int = 0
    """Tokens that were sampled behind the last one of `token_ids` and are handed over nowhere."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a probe found."""

    model: str
    max_context: int
    token_ids: bool
    logprobs: bool
    weight_updates: bool
    detail: str = ""
    """One line for people: engine, version, dtype."""
    other_models: tuple[str, ...] = ()
    """Models with the same tokenizer that a request can name in place of the trained one."""
    renders: bool = False
    """Whether it takes conversations and makes the prompts of them itself."""
    weights: str = ""
    """What the engine calls its present weights; empty: it has no name for them."""


class Engine(Protocol):
    """Samples tokens. Implementations are safe for many concurrent `sample` streams."""

    def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        """Stream a continuation of the prompt; closing the iterator cancels the generation.

        Raises:
            ContextOverflow: The prompt leaves no room for one token.
            BadRequest: An engine that renders cannot, or refuses what the harness asks for.
            EngineError: The engine failed; nothing more will come.
        """
        ...

    async def probe(self) -> Capabilities:
        """Ask the engine what it is, by really sampling a token.

        Raises:
            EngineError: It cannot be reached or used.
        """
        ...

    async def pause(self) -> None:
        """Stop sampling at a token boundary; streams wait, nothing is lost."""
        ...

    async def resume(self) -> None:
        """Go on sampling."""
        ...

    async def load_weights(self, version: int, path: Path | None) -> None:
        """Take new weights, called while paused.

        Args:
            version: The weight version of tokens sampled from now on.
            path: A folder in Hugging Face format; absent when the engine shares the
                trainer's parameters in memory and they were changed in place.
        """
        ...

    async def aclose(self) -> None:
        """Stop and free everything; open streams end with `EngineError`."""
        ...


def check_ids(chunk: Chunk) -> None:
    """Refuse what is no id of any tokenizer, and could not be put on record.

    Raises:
        EngineError: There is such a number among the ids.
    """
    told = (*chunk.prompt_ids, *chunk.token_ids) if chunk.prompt_ids else chunk.token_ids
    wrong = [token for token in told if not 0 <= token <= _LARGEST_ID]
    if wrong:
        raise EngineError(f"the engine told {wrong[0]}, which is no id of a token")
