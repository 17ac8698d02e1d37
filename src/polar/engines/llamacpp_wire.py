"""The wire format of llama.cpp's `/completion`, without I/O.

The server tells no probability of a token that ends within a character, nor, in a stream, its id.
Read without streaming, the ids are whole; which of them have a probability is found by alignment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polar.errors import EngineRefused
from polar.types import Sampling, TokenIds

__all__ = ["Completion", "completion_body", "is_plain", "logprob_in", "raw_body", "read_completion"]

_SAMPLERS = ("temperature", "top_k", "top_p")
"""In the order of the other engines, and no other sampler."""
_FORCED = 1000.0


@dataclass(frozen=True, slots=True)
class Completion:
    """Some sampled tokens."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    """None where the server told none."""
    full: bool
    """Whether the context window has no room for more."""
    cached_tokens: int


def completion_body(prompt_ids: TokenIds, sampling: Sampling, *, tokens: int) -> dict[str, Any]:
    """Ask for some tokens, ids in an array, with every parameter: servers have own defaults."""
    body: dict[str, Any] = {
        "prompt": np.asarray(prompt_ids, dtype=np.int32),
        "n_predict": tokens,
        "samplers": _SAMPLERS,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": sampling.top_p,
        "dynatemp_range": 0.0,
        "mirostat": 0,
        "n_probs": 1,
        "post_sampling_probs": True,
        "return_tokens": True,
        "cache_prompt": True,
    }
    return body if sampling.seed is None else body | {"seed": sampling.seed}


def raw_body(prompt_ids: TokenIds, *, count: int, whole_id: int) -> dict[str, Any]:
    """Ask for the model's own logprobs of the likeliest tokens.

    They are told only along with a token of whole characters, so one is forced; the forcing is
    part of the sampling, which these logprobs are from before.
    """
    return {
        "prompt": np.asarray(prompt_ids, dtype=np.int32),
        "n_predict": 1,
        "temperature": 0.0,
        "logit_bias": [[whole_id, _FORCED]],
        "n_probs": count,
        "post_sampling_probs": False,
        "cache_prompt": True,
    }


def read_completion(answer: Mapping[str, Any], asked: int) -> Completion:
    """Read sampled tokens and what the server tells of their probabilities.

    Raises:
        EngineRefused: Token ids or probabilities are missing.
    """
    token_ids = tuple(answer.get("tokens") or ())
    told = answer.get("completion_probabilities") or []
    if (answer.get("tokens_predicted") and not token_ids) or any("prob" not in p for p in told):
        raise EngineRefused(
            "the server returns no token ids or no probabilities of what it samples from",
            fix="Use a llama.cpp server that knows return_tokens and post_sampling_probs.",
        )
    probabilities = _aligned(token_ids, [(each["id"], each["prob"]) for each in told])
    timings = answer.get("timings") or {}
    return Completion(
        token_ids=token_ids,
        logprobs=tuple(None if p is None else float(np.log(p)) for p in probabilities),
        full=answer["stop_type"] == "limit" and len(token_ids) < asked,
        cached_tokens=int(timings.get("cache_n", 0)),
    )


def is_plain(sampling: Sampling) -> bool:
    """Say whether the model's own distribution is sampled from."""
    return sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k is None


def logprob_in(raw: Mapping[int, float], token: int, sampling: Sampling) -> float | None:
    """Give a token's logprob after temperature, top-k and top-p, from those of the whole model.

    Temperature is above 0.

    Returns:
        None where the parameters exclude the token.
    """
    ids = np.fromiter(raw, dtype=np.int64)
    scaled = np.fromiter(raw.values(), dtype=np.float64) / sampling.temperature
    order = np.argsort(-scaled, kind="stable")[: sampling.top_k or None]
    ids, scaled = ids[order], scaled[order]
    probabilities = np.exp(scaled - scaled[0])
    probabilities /= probabilities.sum()
    if sampling.top_p < 1.0:
        kept = int(np.searchsorted(np.cumsum(probabilities), sampling.top_p)) + 1
        ids, probabilities = ids[:kept], probabilities[:kept] / probabilities[:kept].sum()
    (found,) = np.nonzero(ids == token)
    return float(np.log(probabilities[found[0]])) if len(found) else None


def _aligned(token_ids: Sequence[int], told: Sequence[tuple[int, float]]) -> Sequence[float | None]:
    """Find which tokens the probabilities are of; None for the others and where it is not sure.

    What is told is a part of the sequence, in its order. A place is sure where matching from
    the front and from the back agree.
    """
    front = _matched(token_ids, told)
    back = _matched(token_ids[::-1], told[::-1])[::-1]
    places = [len(told) - 1 - place if place is not None else None for place in back]
    return [
        told[one][1] if one is not None and one == other else None
        for one, other in zip(front, places, strict=True)
    ]


def _matched(token_ids: Sequence[int], told: Sequence[tuple[int, float]]) -> list[int | None]:
    places: list[int | None] = []
    following = 0
    for token in token_ids:
        if following < len(told) and told[following][0] == token:
            places.append(following)
            following += 1
        else:
            places.append(None)
    return places
