"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import wandb

from polar.train.writers.base import numbers
from polar.train.writers.settings import MetricsSettings

__all__ = ["WeightsAndBiases"]


class WeightsAndBiases:
    """Logs to a run of W&B; each process of a resumed run is one, in a group of their own.

    Args:
        settings: Project and mode.
        run_dir: The run folder; what is not sent stays in its `wandb/`.
    """

    def __init__(self, settings: MetricsSettings, run_dir: Path) -> None:
        self._run = wandb.init(
            project=settings.project,
            name=run_dir.name,
            group=run_dir.name,
            dir=str(run_dir),
            mode=settings.wandb_mode,
        )

    def add(self, row: Mapping[str, object]) -> None:
        """Log a row's numbers at its step."""
        self._run.log(numbers(row), step=int(str(row["step"])))

    def close(self) -> None:
        """End the run."""
        self._run.finish()
