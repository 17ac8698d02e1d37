"""Choose the next token of many sequences at once, and say how likely each choice was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polar.types import Sampling

__all__ = ["Sampled", "sample_rows"]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One choice."""

    token_id: int
    logprob: float
    """Natural log, of the distribution after temperature, top_k and top_p."""


def sample_rows(
    logits: Tensor, samplings: Sequence[Sampling], draws: Sequence[float]
) -> list[Sampled]:
    """Sample one token for each row by inverting its cumulative distribution.

    A draw decides alone, so a row's choice depends neither on other rows nor on their number.

    Args:
        logits: float32 [rows, vocabulary].
        samplings: One a row.
        draws: One a row, uniform in [0, 1).
    """
    temperatures = torch.tensor([sampling.temperature or 1.0 for sampling in samplings])
    logprobs = torch.log_softmax(logits / temperatures[:, None], dim=-1)
    for row, sampling in enumerate(samplings):
        if sampling.temperature == 0.0:
            logprobs[row] = _keep(logprobs[row], logprobs[row].argmax()[None])
        elif sampling.top_k is not None or sampling.top_p < 1.0:
            logprobs[row] = _keep(logprobs[row], _nucleus(logprobs[row], sampling))
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)  # [rows, vocabulary]
    total = cumulative[:, -1:]
    aims = torch.tensor(draws, dtype=torch.float64)[:, None] * total
    aims = aims.minimum(total.nextafter(torch.zeros_like(total)))  # a product may round up to it
    chosen = torch.searchsorted(cumulative, aims, right=True)  # first token with more mass: p > 0
    found = logprobs.gather(1, chosen)[:, 0]
    return [Sampled(*pair) for pair in zip(chosen[:, 0].tolist(), found.tolist(), strict=True)]


def _nucleus(logprobs: Tensor, sampling: Sampling) -> Tensor:
    """List the ids that top_k and then top_p leave; the likeliest one always stays."""
    count = min(sampling.top_k or logprobs.shape[0], logprobs.shape[0])
    top, ids = logprobs.topk(count)
    if sampling.top_p >= 1.0:
        return ids
    probabilities = torch.softmax(top, dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = before < sampling.top_p
    kept[0] = True
    return ids[kept]


def _keep(logprobs: Tensor, ids: Tensor) -> Tensor:
    """Renormalise over the given ids; all others become impossible."""
    kept = torch.full_like(logprobs, -torch.inf)
    kept[ids] = torch.log_softmax(logprobs[ids], dim=-1)
    return kept
