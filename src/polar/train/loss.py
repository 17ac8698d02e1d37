"""The loss: clipped ratio times advantage, corrected for the engine, pulled to the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from polar.train.settings import TrainSettings

__all__ = ["PolicyLoss", "Samples", "engine_weights", "k3", "policy_loss", "policy_ratio"]


@dataclass(frozen=True, slots=True)
class Samples:
    """What the loss is told of some samples (trained tokens): float32 [samples] each."""

    logprobs: Tensor
    """Of the weights being trained, with gradient."""
    old_logprobs: Tensor
    """Of the weights the ratio is measured from."""
    engine_logprobs: Tensor
    """As recorded when the token was sampled."""
    advantages: Tensor
    """Of the session, or the call, that sampled the token."""
    weights: Tensor
    """The normaliser's share of the token, global over the optimizer step."""
    traces: Tensor
    """int64 [samples]; the trace that the token is trained in, all of whose samples are here."""
    entropies: Tensor
    """Of the distribution that the token was sampled from, with gradient."""
    reference_logprobs: Tensor | None = None
    """Of the reference model; absent: there is none."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of some samples, and what it was made of, without gradient."""

    loss: Tensor
    """float32 []; adds up over the batches of an optimizer step to the step's loss."""
    ratio: Tensor
    """float32 [samples]; current over old policy."""
    clipped: Tensor
    """bool [samples]; whether clipping removed the gradient."""
    engine_weight: Tensor
    """float32 [samples]; importance weight of the trainer's over the engine's policy; 0: masked."""
    bounded: Tensor
    """bool [samples]; whether that weight was capped or masked."""
    divergence: Tensor | None
    """float32 [samples]; k3 estimate of the distance to the reference; absent: there is none."""


def policy_loss(samples: Samples, settings: TrainSettings) -> PolicyLoss:
    """Weigh each sampled token by the advantage of its session or call.

    Source: PPO (arXiv 1707.06347) §3; clip-higher: DAPO (arXiv 2503.14476) §3.1; the reference in
        the loss: DeepSeekMath (arXiv 2402.03300) §4.1.
    """
    ratio = policy_ratio(samples, settings)
    unclipped = ratio * samples.advantages
    low, high = 1.0 - settings.clip_low, 1.0 + settings.clip_high
    bounded = ratio.clamp(low, high) * samples.advantages
    engine_weight, capped = engine_weights(samples, settings)
    gain = engine_weight * torch.minimum(unclipped, bounded)

    divergence = None
    if samples.reference_logprobs is not None:
        divergence = k3(samples.logprobs, samples.reference_logprobs)
        if settings.kl is not None and settings.kl.within == "loss":
            gain = gain - settings.kl.coefficient * divergence
        divergence = divergence.detach()
    if settings.entropy_coef > 0.0:
        gain = gain + settings.entropy_coef * samples.entropies

    loss = -(samples.weights * gain).sum()
    clipped = (bounded < unclipped).detach()
    return PolicyLoss(loss, ratio.detach(), clipped, engine_weight, capped, divergence)


def policy_ratio(samples: Samples, settings: TrainSettings) -> Tensor:
    """Compute the current over the old policy: float32 [samples], with gradient.

    A sequence is a trace: all of its trained tokens were sampled in one line, and are in one
    batch. The tokens of a trace share its ratio. Under credit by step a token has the value of
    that ratio and the gradient of its own, or the advantages of a trace would be averaged.

    Source: GSPO (arXiv 2507.18071) §4.1, for the ratio of a sequence; §4.3 (GSPO-token), for
        tokens of one sequence with different advantages.
    """
    difference = samples.logprobs - samples.old_logprobs
    match settings.ratio:
        case "token":
            return torch.exp(difference)
        case "sequence":
            traces, index = torch.unique(samples.traces, return_inverse=True)
            sums = difference.new_zeros(traces.numel()).index_add(0, index, difference)
            ratio = torch.exp(sums / index.bincount(minlength=traces.numel()))[index]
            if settings.credit == "steps":
                return ratio.detach() * torch.exp(difference - difference.detach())
            return ratio
        case _:
            assert_never(settings.ratio)


def engine_weights(samples: Samples, settings: TrainSettings) -> tuple[Tensor, Tensor]:
    """Compute each token's weight for the engine's deviation, and whether a bound was met.

    Source: truncated importance sampling: "Your efficient RL framework secretly brings you
        off-policy RL training" (Yao et al., 2025); the band: IcePop, in Ring-1T (arXiv 2510.18855)
        §3.
    """
    weight = torch.exp(samples.old_logprobs - samples.engine_logprobs)
    match settings.correction if settings.recompute else "none":
        case "none":
            return torch.ones_like(weight), torch.zeros_like(weight, dtype=torch.bool)
        case "tis":
            return weight.clamp(max=settings.tis_cap), weight > settings.tis_cap
        case "icepop":
            low, high = settings.icepop_band
            beyond = (weight < low) | (weight > high)
            return weight.masked_fill(beyond, 0.0), beyond
        case other:
            assert_never(other)


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Estimate the distance to the reference by one sampled token each; never negative.

    Source: "Approximating KL divergence" (Schulman, 2020); DeepSeekMath (arXiv 2402.03300) eq. 4.
    """
    difference = reference_logprobs - logprobs
    return torch.expm1(difference) - difference
