"""Learning: advantages, losses, tree batches and the trainer (imports torch)."""

from polar.train.metrics import StepMetrics, SupervisedMetrics
from polar.train.settings import LoraSettings, TrainSettings
from polar.train.trainer import Trainer

__all__ = ["LoraSettings", "StepMetrics", "SupervisedMetrics", "TrainSettings", "Trainer"]
