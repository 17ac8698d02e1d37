"""What an evaluator is: it turns the work folder of a finished session into a grade."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from polar.runtimes.base import Runtime
from polar.types import Grade, Task

__all__ = ["Evaluation", "Evaluator"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished session to grade. Every process of the agent is dead by now."""

    task: Task
    work_dir: Path
    runtime: Runtime
    """For graders that run code: always in a new sandbox, never the agent's."""


class Evaluator(Protocol):
    """Grades finished sessions. Built from `EvaluatorSpec.config`, which it validates strictly."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Make one from plain settings.

        Raises:
            ConfigError: Names each setting that is unknown, missing or wrong.
        """
        ...

    async def grade(self, evaluation: Evaluation) -> Grade:
        """Look at the outcome; raise `RuntimeFailed` only when the grader itself breaks."""
        ...
