"""Which recorded sessions are worth imitating: rejection sampling and the best of each task."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from polar.train.sft_settings import SftSettings
from polar.train.standing import is_graded
from polar.types import TaskId, Trajectory

__all__ = ["Selection", "select"]


@dataclass(frozen=True, slots=True)
class Selection:
    """What is left, in the order it was recorded in."""

    kept: tuple[Trajectory, ...]
    left_out: Mapping[str, int]
    """Reason -> sessions."""


def select(trajectories: Iterable[Trajectory], settings: SftSettings) -> Selection:
    """Choose the sessions to imitate; each that is left out is counted with its reason."""
    left_out: Counter[str] = Counter()
    fit: list[Trajectory] = []
    for trajectory in trajectories:
        reason = _unfit(trajectory, settings)
        if reason is None:
            fit.append(trajectory)
        else:
            left_out[reason] += 1
    kept = _best(fit, settings.best_of)
    if len(kept) < len(fit):
        left_out["not_among_the_best"] = len(fit) - len(kept)
    return Selection(tuple(kept), dict(left_out))


def _unfit(trajectory: Trajectory, settings: SftSettings) -> str | None:
    if not is_graded(trajectory.outcome):
        return "not_graded"
    if settings.min_reward is not None and trajectory.reward < settings.min_reward:
        return "reward_too_low"
    if not any(trace.loss_mask.any() for trace in trajectory.traces):
        return "no_trained_token"
    return None


def _best(trajectories: Sequence[Trajectory], count: int | None) -> list[Trajectory]:
    if count is None:
        return list(trajectories)
    ranks: dict[TaskId, list[int]] = defaultdict(list)
    for index, trajectory in enumerate(trajectories):
        ranks[trajectory.task_id].append(index)
    chosen = [
        index
        for indices in ranks.values()
        for index in sorted(
            indices, key=lambda i: (-trajectories[i].reward, trajectories[i].report.sampled)
        )[:count]
    ]
    return [trajectories[index] for index in sorted(chosen)]
