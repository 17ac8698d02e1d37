"""What a training step reports."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepMetrics", "SupervisedMetrics"]


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One `Trainer.step`. Means are over trained tokens; absent where there were none."""

    weight_version: int
    """Version of the weights after the step."""
    loss: float
    """Mean loss of the optimizer steps."""
    grad_norm: float
    """Largest gradient norm of the optimizer steps, before clipping."""
    lr: float
    """Learning rate of the first optimizer step."""
    optimizer_steps: int
    groups: int
    groups_without_spread: int
    """Groups that were skipped because their rewards do not differ."""
    truncated_sessions: int
    """Sessions that were cut off before the model was done; see `train.truncated_sessions`."""
    unscored_calls: int | None
    """Trained calls that counted 0 because nobody scored them; absent without `credit: steps`."""
    trained_tokens: int
    """Sampled tokens with an advantage, once each."""
    dropped_tokens: int
    """Sampled tokens of traces that are longer than `max_trace_tokens`."""
    tree_tokens: int
    """Tokens that were computed."""
    sequence_tokens: int
    """Tokens that separate sequences would have cost."""
    tree_saving: float
    """`sequence_tokens / tree_tokens`."""
    logprob_gap_mean: float | None
    """Mean absolute difference of engine and trainer logprobs, of tokens that the current weights
    sampled."""
    logprob_gap_max: float | None
    """Largest such difference."""
    engine_kl: float | None
    """How far the trainer's distributions are from the engine's: the k3 estimate over those
    tokens."""
    ratio_mean: float | None
    """Mean of current over old policy."""
    ratio_max: float | None
    """Largest such ratio."""
    clip_fraction: float | None
    """Share of tokens whose gradient was clipped away."""
    clip_high_fraction: float | None
    """Share of tokens that were clipped above, which is where rewarded ones are."""
    engine_weight_mean: float | None
    """Mean importance weight between trainer and engine, as bounded."""
    engine_bounded_fraction: float | None
    """Share of tokens whose weight was capped (`tis`) or that were masked (`icepop`)."""
    kl: float | None
    """Mean divergence from the reference in nats a token; absent: there is none."""
    entropy: float | None
    """Mean entropy in nats of the distributions that trained tokens were sampled from."""
    train_s: float


@dataclass(frozen=True, slots=True)
class SupervisedMetrics:
    """One `Trainer.supervised`."""

    weight_version: int
    """Version of the weights afterwards."""
    losses: tuple[float, ...]
    """Mean negative log-likelihood of a sampled token, of each epoch."""
    optimizer_steps: int
    trained_tokens: int
    """Sampled tokens, once each and epoch."""
    dropped_tokens: int
    """Sampled tokens of traces that are longer than `max_trace_tokens`, each epoch."""
    tree_tokens: int
    sequence_tokens: int
    train_s: float
