"""Sums that a training step gathers batch by batch for its metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polar.train.loss import PolicyLoss, k3
from polar.train.metrics import StepMetrics
from polar.train.tree_batch import TreeBatch

__all__ = ["Tally"]


_SUMS = (
    *("samples", "tree_tokens", "sequence_tokens", "loss", "ratio", "clipped", "clipped_high"),
    *("engine_weight", "bounded", "entropy", "engine_kl", "gap_sum", "gap_samples"),
)


@dataclass(slots=True)
class Tally:
    """What one `Trainer.step` did so far."""

    version: int
    """Weight version before the step."""
    lr: float
    """Learning rate of the first optimizer step."""
    unscored_calls: int | None = None
    """Trained calls without a score; absent where credit is by outcome."""
    samples: int = 0
    tree_tokens: int = 0
    sequence_tokens: int = 0
    loss: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0
    clipped: float = 0.0
    clipped_high: float = 0.0
    engine_weight: float = 0.0
    bounded: float = 0.0
    entropy: float = 0.0
    divergence: float | None = None
    kl: float | None = None
    """Mean log ratio to the reference of the step's tokens, where it was part of the rewards."""
    engine_kl: float = 0.0
    gap_sum: float = 0.0
    gap_max: float = 0.0
    gap_samples: int = 0
    grad_norms: list[float] = field(default_factory=list)

    def add_batch(
        self, batch: TreeBatch, logprobs: Tensor, entropies: Tensor, result: PolicyLoss
    ) -> None:
        """Count one batch of one pass; the gap only before the first update.

        Args:
            batch: The trees.
            logprobs: float32 [samples]; as computed.
            entropies: float32 [samples]
            result: The loss and its parts.
        """
        self.samples += logprobs.numel()
        self.tree_tokens += batch.token_ids.size
        self.sequence_tokens += batch.sequence_tokens
        self.loss += float(result.loss.detach())
        self.ratio += float(result.ratio.sum())
        self.ratio_max = max(self.ratio_max, float(result.ratio.max()))
        self.clipped += float(result.clipped.sum())
        self.clipped_high += float((result.clipped & (result.ratio > 1.0)).sum())
        self.engine_weight += float(result.engine_weight.sum())
        self.bounded += float(result.bounded.sum())
        self.entropy += float(entropies.sum())
        if result.divergence is not None:
            self.divergence = (self.divergence or 0.0) + float(result.divergence.sum())
        if not self.grad_norms:
            self.add_gap(batch, logprobs)

    def add_gap(self, batch: TreeBatch, logprobs: Tensor) -> None:
        """Compare with the engine on the tokens that the current weights sampled."""
        current = torch.from_numpy(batch.weight_versions == self.version)
        engine = torch.from_numpy(batch.engine_logprobs)[current]
        computed = logprobs.cpu()[current]
        gaps = (computed - engine).abs()
        if gaps.numel():
            self.engine_kl += float(k3(engine, computed).sum())
            self.gap_sum += float(gaps.sum())
            self.gap_max = max(self.gap_max, float(gaps.max()))
            self.gap_samples += gaps.numel()

    def add_rank(self, other: Tally) -> None:
        """Add what another rank counted of the same optimizer steps."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.gap_max = max(self.gap_max, other.gap_max)
        if other.divergence is not None:
            self.divergence = (self.divergence or 0.0) + other.divergence

    def add_update(self, grad_norm: float) -> None:
        """Count one optimizer step."""
        self.grad_norms.append(grad_norm)

    def metrics(
        self,
        *,
        weight_version: int,
        groups: int,
        groups_without_spread: int,
        truncated_sessions: int,
        dropped_tokens: int,
        train_s: float,
    ) -> StepMetrics:
        """Divide the sums."""
        return StepMetrics(
            weight_version=weight_version,
            loss=self.loss / max(1, len(self.grad_norms)),
            grad_norm=max(self.grad_norms, default=0.0),
            lr=self.lr,
            optimizer_steps=len(self.grad_norms),
            groups=groups,
            groups_without_spread=groups_without_spread,
            truncated_sessions=truncated_sessions,
            unscored_calls=self.unscored_calls,
            trained_tokens=self.samples,
            dropped_tokens=dropped_tokens,
            tree_tokens=self.tree_tokens,
            sequence_tokens=self.sequence_tokens,
            tree_saving=self.sequence_tokens / self.tree_tokens if self.tree_tokens else 1.0,
            logprob_gap_mean=_mean(self.gap_sum, self.gap_samples),
            logprob_gap_max=self.gap_max if self.gap_samples else None,
            engine_kl=_mean(self.engine_kl, self.gap_samples),
            ratio_mean=_mean(self.ratio, self.samples),
            ratio_max=self.ratio_max if self.samples else None,
            clip_fraction=_mean(self.clipped, self.samples),
            clip_high_fraction=_mean(self.clipped_high, self.samples),
            engine_weight_mean=_mean(self.engine_weight, self.samples),
            engine_bounded_fraction=_mean(self.bounded, self.samples),
            kl=self.kl if self.divergence is None else _mean(self.divergence, self.samples),
            entropy=_mean(self.entropy, self.samples),
            train_s=train_s,
        )


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None
