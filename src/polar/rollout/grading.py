"""The grading stage: what a harness left behind becomes an outcome."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from polar.evaluators import from_spec
from polar.evaluators.base import Evaluation
from polar.rollout.running import Ran
from polar.rollout.settings import RolloutSettings
from polar.runtimes.base import ExecResult
from polar.store.base import Journal
from polar.store.outcomes import encode_outcome
from polar.types import Call, Completed, Failed, Grade, Outcome, Session, TimedOut

__all__ = ["graded"]


async def graded(
    session: Session,
    evaluation: Evaluation,
    ran: Ran,
    *,
    journal: Journal,
    settings: RolloutSettings,
) -> Outcome:
    """Grade the work, unless the session ended through no doing of the model.

    Raises:
        TimeoutError: The grader used up its budget.
        PolarError: The grader itself broke.
    """
    if ran.result is not None:
        calls = await journal.calls(session.id, session.attempt)
        if broken := _broken(calls, ran.result, ran, settings):
            return Failed("running", broken)
    evaluator = from_spec(evaluation.task.evaluator)
    async with asyncio.timeout(evaluation.task.limits.grade_s):
        grade = await evaluator.grade(evaluation)
    if (wrong := _not_kept(grade)) is not None:
        return Failed("grading", f"the grader {evaluation.task.evaluator.name} gave {wrong}")
    if ran.result is None:
        return TimedOut("running", grade)
    return Completed(grade, ran.result.exit_code, ran.usage.cut_off)


def _not_kept(grade: object) -> str | None:
    """Say why what a grader gave, which may be anyone's code, cannot be put on record."""
    if not isinstance(grade, Grade):
        return f"{grade!r}, which is no grade"
    if not isinstance(grade.reward, int | float) or not math.isfinite(grade.reward):
        return f"the reward {grade.reward!r}, which is no finite number"
    try:
        encode_outcome(Completed(grade, 0))
    except TypeError as error:
        return f"details that are no JSON: {error}"
    return None


def _broken(
    calls: Sequence[Call], result: ExecResult, ran: Ran, settings: RolloutSettings
) -> str | None:
    """Say how a session ended through no doing of the model; None when it did not."""
    if not calls:
        return _without_a_call(result, ran)
    # Titles, sub-agents and the agent's own use of the address may come after it.
    *_, last = [call for call in calls if call.kind == "main"] or calls
    if last.finish_reason == "error":
        return f"the engine failed in the last call, {last.id}"
    at_a_limit = ran.usage.cut_off is not None or last.finish_reason == "length"
    if settings.broken_harness == "fail" and not (ran.ended_well or at_a_limit):
        return f"the harness broke (exit {result.exit_code}): {_tail(result)}"
    return None


def _without_a_call(result: ExecResult, ran: Ran) -> str:
    if ran.usage.refused_for_length:
        return (
            f"the first request has {ran.usage.longest_refused} tokens,"
            " which the model's context window does not hold"
        )
    return f"the harness made no model call (exit {result.exit_code}): {_tail(result)}"


def _tail(result: ExecResult) -> str:
    return (result.stderr or result.stdout).strip()[-500:]
