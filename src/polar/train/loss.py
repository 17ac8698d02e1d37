"""The policy loss: clipped ratio times advantage, corrected for the engine's deviation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polar.train.settings import TrainSettings

__all__ = ["PolicyLoss", "policy_loss"]


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of some samples (trained tokens), and what it was made of, without gradient."""

    loss: Tensor
    """float32 []; adds up over the batches of an optimizer step to the step's loss."""
    ratio: Tensor
    """float32 [samples]; current over old policy."""
    clipped: Tensor
    """bool [samples]; whether clipping removed the gradient."""
    engine_weight: Tensor
    """float32 [samples]; truncated importance weight of the trainer's over the engine's policy."""


def policy_loss(
    logprobs: Tensor,
    *,
    old_logprobs: Tensor,
    engine_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    settings: TrainSettings,
) -> PolicyLoss:
    """Weigh each sampled token by its session's advantage.

    Args:
        logprobs: float32 [samples]; of the weights being trained, with gradient.
        old_logprobs: float32 [samples]; of the weights the ratio is measured from.
        engine_logprobs: float32 [samples]; as recorded when the token was sampled.
        advantages: float32 [samples]; of the session that sampled the token.
        weights: float32 [samples]; the normaliser's share of the token, global over the
            optimizer step.
        settings: Clip bounds and cap.

    Source: PPO (arXiv 1707.06347) §3; clip-higher: DAPO (arXiv 2503.14476) §3.1; truncated
        importance sampling: "Your efficient RL framework secretly brings you off-policy RL
        training" (Yao et al., 2025).
    """
    ratio = torch.exp(logprobs - old_logprobs)
    unclipped = ratio * advantages
    bounded = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high) * advantages
    surrogate = torch.minimum(unclipped, bounded)

    engine_weight = torch.ones_like(old_logprobs)
    if settings.recompute and settings.tis_cap is not None:
        engine_weight = torch.exp(old_logprobs - engine_logprobs).clamp(max=settings.tis_cap)

    loss = -(weights * engine_weight * surrogate).sum()
    return PolicyLoss(loss, ratio.detach(), (bounded < unclipped).detach(), engine_weight)
