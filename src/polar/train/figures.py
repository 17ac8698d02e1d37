"""What a collection of sessions came to, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import pstdev

from polar.types import Cancelled, Completed, Failed, Group, TimedOut, Trajectory

__all__ = ["RolloutFigures", "figures_of", "passed"]


@dataclass(frozen=True, slots=True)
class RolloutFigures:
    """What the sessions of one collection came to."""

    sessions: int
    reward_mean: float
    reward_std: float
    """Deviation of the rewards of all sessions."""
    pass_rate: float
    failed: int
    """Sessions that broke through no fault of the model."""
    failed_while: Mapping[str, int]
    """Stage -> sessions of these that broke in it."""
    nonzero_exits: int
    """Graded sessions whose harness exited with something else than 0."""
    timed_out: int
    cut_off: Mapping[str, int]
    """Limit -> sessions whose last call the gateway refused there: `max_calls`, `context`."""
    calls: int
    """Those whose tokens are trained."""
    scored_calls: int
    """Those of them that user code has scored."""
    step_reward_mean: float | None
    """Mean score of the scored calls; absent where there are none."""
    sampled_tokens: int
    session_tokens_mean: float
    """Sampled tokens of a session."""
    session_tokens_max: int
    kept_tokens: int
    kept_share: float
    dropped: Mapping[str, int]
    """Reason -> sampled tokens that are not trained."""
    forks: Mapping[str, int]
    """Reason -> calls that did not extend the conversation as it was."""
    per_request_tokens: int
    """Tokens that one training sequence a call would cost."""
    unique_tokens: int
    """Tokens of the sessions' token trees."""


def passed(trajectory: Trajectory) -> bool:
    """Tell whether the session's work passed its grader."""
    match trajectory.outcome:
        case Completed(grade=grade):
            return grade.passed
        case TimedOut(grade=grade) if grade is not None:
            return grade.passed
        case _:
            return False


def figures_of(groups: Iterable[Group]) -> RolloutFigures:
    """Add up what a collection came to."""
    sessions = [trajectory for group in groups for trajectory in group.trajectories]
    count = max(1, len(sessions))
    dropped: Counter[str] = Counter()
    forks: Counter[str] = Counter()
    for trajectory in sessions:
        dropped.update(trajectory.report.dropped)
        forks.update(trajectory.report.forks)
    scores = [score for trajectory in sessions for score in trajectory.step_rewards.values()]
    sampled = sum(trajectory.report.sampled for trajectory in sessions)
    kept = sum(trajectory.report.kept for trajectory in sessions)
    return RolloutFigures(
        sessions=len(sessions),
        reward_mean=sum(trajectory.reward for trajectory in sessions) / count,
        reward_std=pstdev([t.reward for t in sessions]) if sessions else 0.0,
        pass_rate=sum(passed(trajectory) for trajectory in sessions) / count,
        failed=sum(isinstance(trajectory.outcome, Failed | Cancelled) for trajectory in sessions),
        failed_while=_failed_while(sessions),
        nonzero_exits=sum(_exited_nonzero(trajectory) for trajectory in sessions),
        timed_out=sum(isinstance(trajectory.outcome, TimedOut) for trajectory in sessions),
        cut_off=_cut_off(sessions),
        calls=sum(len(trace.call_ids) for trajectory in sessions for trace in trajectory.traces),
        scored_calls=len(scores),
        step_reward_mean=sum(scores) / len(scores) if scores else None,
        sampled_tokens=sampled,
        session_tokens_mean=sampled / count,
        session_tokens_max=max((t.report.sampled for t in sessions), default=0),
        kept_tokens=kept,
        kept_share=kept / sampled if sampled else 1.0,
        dropped=dict(dropped),
        forks=dict(forks),
        per_request_tokens=sum(t.report.per_request_tokens for t in sessions),
        unique_tokens=sum(t.report.tree_tokens for t in sessions),
    )


def _cut_off(sessions: Iterable[Trajectory]) -> Mapping[str, int]:
    limits: Counter[str] = Counter()
    for trajectory in sessions:
        match trajectory.outcome:
            case Completed(cut_off=limit) if limit is not None:
                limits[limit] += 1
            case _:
                pass
    return dict(limits)


def _failed_while(sessions: Iterable[Trajectory]) -> Mapping[str, int]:
    outcomes = (trajectory.outcome for trajectory in sessions)
    return dict(Counter(outcome.stage for outcome in outcomes if isinstance(outcome, Failed)))


def _exited_nonzero(trajectory: Trajectory) -> bool:
    return isinstance(trajectory.outcome, Completed) and trajectory.outcome.exit_code != 0
