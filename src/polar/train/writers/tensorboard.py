"""TensorBoard: event files in the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from polar.train.writers.base import numbers
from polar.train.writers.settings import MetricsSettings

__all__ = ["TensorBoard"]


class TensorBoard:
    """Writes to `tensorboard/` of the run folder; a resumed run adds a file.

    Args:
        settings: Nothing of it is needed here.
        run_dir: The run folder.
    """

    def __init__(self, settings: MetricsSettings, run_dir: Path) -> None:
        self._writer = SummaryWriter(str(run_dir / "tensorboard"))

    def add(self, row: Mapping[str, object]) -> None:
        """Write a row's numbers at its step."""
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, int(str(row["step"])))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
