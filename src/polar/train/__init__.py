"""Learning: advantages, losses, tree batches, and the trainer, which alone imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polar.train.metrics import StepMetrics, SupervisedMetrics
from polar.train.settings import LoraSettings, TrainSettings

if TYPE_CHECKING:
    from polar.train.trainer import Trainer

__all__ = ["LoraSettings", "StepMetrics", "SupervisedMetrics", "TrainSettings", "Trainer"]


def __getattr__(name: str) -> object:
    """Import the trainer on first use: settings must be readable without torch."""
    if name == "Trainer":
        from polar.train.trainer import Trainer

        return Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
