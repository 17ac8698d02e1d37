"""Evaluators: what turns the work of a finished session into a reward."""

from __future__ import annotations

from collections.abc import Iterable

from polar.errors import ConfigError
from polar.evaluators.base import Evaluation, Evaluator
from polar.plugins import Family
from polar.types import EvaluatorSpec, Task

__all__ = ["Evaluation", "Evaluator", "check_tasks", "from_spec", "load", "names"]

_FAMILY: Family[type[Evaluator]] = Family(
    "evaluator",
    "polar.evaluators",
    {
        "command": "polar.evaluators.command:CommandEvaluator",
        "files": "polar.evaluators.files:FilesEvaluator",
    },
)


def names() -> tuple[str, ...]:
    """List the evaluators of Polar and of installed packages."""
    return _FAMILY.names()


def load(name: str) -> type[Evaluator]:
    """Import the evaluator of that name.

    Raises:
        ConfigError: There is none.
    """
    return _FAMILY.load(name)


def from_spec(spec: EvaluatorSpec) -> Evaluator:
    """Make the evaluator that a task asks for.

    Raises:
        ConfigError: There is none of that name, or it refuses its settings.
    """
    return load(spec.name).from_config(spec.config)


def check_tasks(tasks: Iterable[Task]) -> None:
    """Make the evaluator of each task once, so that a wrong setting is found before anything runs.

    Raises:
        ConfigError: Names the first task whose evaluator is unknown or refuses its settings.
    """
    for task in tasks:
        try:
            from_spec(task.evaluator)
        except ConfigError as error:
            place = f"task {task.id!r}" + (f", {error.where}" if error.where else "")
            raise ConfigError(error.what, where=place, fix=error.fix) from error
