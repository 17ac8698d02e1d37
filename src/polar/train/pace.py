"""How fast a step went, and what its time was spent on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Pace", "pace"]


@dataclass(frozen=True, slots=True)
class Pace:
    """Rates and shares of a step; absent where no time passed."""

    step_s: float
    """From the end of the step before to the end of this one's training."""
    sampled_tokens_per_s: float | None
    """Sampled tokens a second of rollout, which may have gone on beside training."""
    trained_tokens_per_s: float | None
    """Trained tokens a second of training."""
    computed_tokens_per_s: float | None
    """Unique tokens that went through the model a second of training."""
    wait_share: float | None
    """Share of the step in which training waited for sessions."""
    train_share: float | None
    """Share of the step in which it trained, weight updates included."""


def pace(*, tokens: tuple[int, int, int], rollout_s: float, wait_s: float, train_s: float) -> Pace:
    """Divide what was done by how long it took.

    Args:
        tokens: Sampled, trained, and computed ones.
        rollout_s: How long the step's sessions took to collect.
        wait_s: How long training waited for them.
        train_s: How long it took from then on.
    """
    sampled, trained, computed = tokens
    step_s = wait_s + train_s
    return Pace(
        step_s=step_s,
        sampled_tokens_per_s=_ratio(sampled, rollout_s),
        trained_tokens_per_s=_ratio(trained, train_s),
        computed_tokens_per_s=_ratio(computed, train_s),
        wait_share=_ratio(wait_s, step_s),
        train_share=_ratio(train_s, step_s),
    )


def _ratio(amount: float, whole: float) -> float | None:
    return amount / whole if whole > 0.0 else None
