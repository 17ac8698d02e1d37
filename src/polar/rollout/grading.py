"""The grading stage: what a harness left behind becomes an outcome."""

from __future__ import annotations

import asyncio
import math

from polar.evaluators import from_spec
from polar.evaluators.base import Evaluation
from polar.rollout.running import Ran
from polar.runtimes.base import ExecResult
from polar.store.base import Journal
from polar.store.outcomes import encode_outcome
from polar.types import Completed, Failed, Grade, Outcome, Session, TimedOut

__all__ = ["graded"]


async def graded(
    session: Session, evaluation: Evaluation, ran: Ran, *, journal: Journal
) -> Outcome:
    """Grade the work, unless the session ended through no doing of the model.

    Raises:
        TimeoutError: The grader used up its budget.
        PolarError: The grader itself broke.
    """
    if ran.result is not None and (broken := await _broken(session, ran.result, journal)):
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


async def _broken(session: Session, result: ExecResult, journal: Journal) -> str | None:
    """Say how a session ended through no doing of the model; None when it did not."""
    calls = await journal.calls(session.id, session.attempt)
    if not calls:
        tail = (result.stderr or result.stdout).strip()[-500:]
        return f"the harness made no model call (exit {result.exit_code}): {tail}"
    # Titles, sub-agents and the agent's own use of the address may come after it.
    *_, last = [call for call in calls if call.kind == "main"] or calls
    if last.finish_reason == "error":
        return f"the engine failed in the last call, {last.id}"
    return None
