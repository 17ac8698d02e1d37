"""Trackio: a local project that `trackio show` serves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import trackio

from polar.train.writers.base import numbers
from polar.train.writers.settings import MetricsSettings

__all__ = ["Trackio"]


class Trackio:
    """Logs to a run of Trackio's, kept where it keeps all its projects.

    Args:
        settings: The project.
        run_dir: The run folder, which names the run.
    """

    def __init__(self, settings: MetricsSettings, run_dir: Path) -> None:
        self._run = trackio.init(
            project=settings.project,
            name=run_dir.name,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
        )

    def add(self, row: Mapping[str, object]) -> None:
        """Log a row's numbers at its step."""
        self._run.log(numbers(row), step=int(str(row["step"])))

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()
