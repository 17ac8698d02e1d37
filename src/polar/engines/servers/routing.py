"""Which server a call goes to, and what is left of it when that server is lost."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from polar.engines.base import SampleRequest
from polar.engines.servers.member import Member
from polar.errors import ContextOverflow, EngineError
from polar.types import Sampling

__all__ = ["check_request", "choose", "ended", "rest_of"]


def choose(affinity: str, able: Sequence[Member]) -> Member:
    """Choose a server: always the same for a session while it is able, else the idlest.

    Each server draws a number for the session and the highest wins, so a server that leaves or
    returns moves its own sessions only.

    Source: rendezvous hashing; Thaler and Ravishankar, "Using name-based mappings to increase hit
    rates", 1998.
    """
    if not affinity:
        return min(able, key=lambda member: member.streams)
    if len(able) == 1:
        return able[0]
    return max(able, key=lambda member: _draw(affinity, member.address))


def rest_of(request: SampleRequest, given: Sequence[int]) -> SampleRequest:
    """Ask for what is left of a reply: the tokens given so far become part of the prompt.

    A seed is changed: the same random numbers a second time would depend on the tokens that they
    chose the first time.
    """
    if not given:
        return request
    sampling = request.sampling
    left = None if sampling.max_tokens is None else sampling.max_tokens - len(given)
    seed = None if sampling.seed is None else _draw(str(sampling.seed), str(len(given))) >> 33
    return replace(
        request,
        prompt_ids=(*request.prompt_ids, *given),
        sampling=replace(sampling, max_tokens=left, seed=seed),
    )


def ended(
    request: SampleRequest, given: Sequence[int], max_context: int
) -> Literal["stop", "length"] | None:
    """Say why a reply is over with the tokens given so far; None where more can be sampled."""
    if not given:
        return None
    sampling: Sampling = request.sampling
    if given[-1] in sampling.stop_token_ids:
        return "stop"
    room = max_context - len(request.prompt_ids)
    limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
    return "length" if len(given) >= limit else None


def check_request(request: SampleRequest, max_context: int) -> None:
    """See that a request can be asked at all.

    Raises:
        ContextOverflow: The prompt leaves no room for one token.
        EngineError: The prompt is empty, or no token is asked for.
    """
    prompt_tokens = len(request.prompt_ids)
    if prompt_tokens == 0:
        raise EngineError("the prompt is empty")
    if prompt_tokens >= max_context:
        raise ContextOverflow(prompt_tokens=prompt_tokens, max_context=max_context)
    limit = request.sampling.max_tokens
    if limit is not None and limit < 1:
        raise EngineError(f"max_tokens is {limit}", fix="Ask for one token or more.")


def _draw(*names: str) -> int:
    digest = hashlib.sha256("\n".join(names).encode()).digest()
    return int.from_bytes(digest[:8], "big")
