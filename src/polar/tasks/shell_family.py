"""Generated tasks: shell exercises of many kinds, drawn from a seed, with kinds held out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Literal

from polar.tasks.shell_kinds import HELDOUT_KINDS, TRAIN_KINDS, Kind
from polar.tasks.shell_scene import Dice, draw_scene
from polar.tasks.trail_kinds import HELDOUT_TRAILS, TRAIN_TRAILS
from polar.types import EvaluatorSpec, Limits, Task, TaskId

__all__ = ["Family", "Split", "generate"]

Family = Literal["shell", "trail"]
"""`shell`: one command solves a task; `trail`: three, each of which needs the last one's output."""
Split = Literal["train", "heldout"]

_KINDS: Mapping[Family, Mapping[Split, tuple[Kind, ...]]] = {
    "shell": {"train": TRAIN_KINDS, "heldout": HELDOUT_KINDS},
    "trail": {"train": TRAIN_TRAILS, "heldout": HELDOUT_TRAILS},
}
_LIMITS = Limits(run_s=120.0, max_calls=8, cpu_s=60, memory_mb=2048, processes=64)


def generate(
    *,
    seed: int,
    split: Split,
    count: int,
    partial_weight: float = 0.0,
    family: Family = "shell",
) -> tuple[Task, ...]:
    """Draw tasks: each kind of the split comes once in every round, in an order of its own.

    The same arguments give the same tasks in every version of Python, and a smaller `count` gives
    the beginning of what a larger one gives.

    Args:
        seed: Any integer.
        split: `train` and `heldout` share no kind.
        count: How many tasks.
        partial_weight: Reward for part of the work, see the `files` evaluator.
        family: Which kinds to draw from.
    """
    kinds = _KINDS[family][split]
    tasks: list[Task] = []
    for start in range(0, count, len(kinds)):
        order = Dice(f"{seed}/{split}/{start}").some(kinds, len(kinds))
        for number, kind in enumerate(order[: count - start], start=start):
            tasks.append(_task(kind, seed, number, partial_weight))
    return tuple(tasks)


def _task(kind: Kind, seed: int, number: int, partial_weight: float) -> Task:
    name = f"shell-{kind.name}-{seed}-{number}"
    dice = Dice(name)
    says = dice.one(kind.says)
    scene = draw_scene(dice)
    files = kind.lays(scene)
    checks = [dict(check) for check in kind.checks(scene)]
    config = {
        "checks": [*checks, *_guards(files, checks)],
        "partial_weight": partial_weight,
    }
    words = asdict(scene)
    return Task(
        id=TaskId(name),
        instruction=says.format(**words),
        evaluator=EvaluatorSpec("files", config),
        files=files,
        kind=kind.name,
        expert=tuple(each.format(**words) for each in (*kind.before, kind.command)),
        limits=_LIMITS,
    )


def _guards(files: Iterable[str], checks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Guard every file that the task does not ask to change, by itself or with its folder."""
    named = {check["path"] for check in checks}
    return [
        {"path": path, "unchanged": True}
        for path in files
        if path not in named and path.partition("/")[0] not in named
    ]
