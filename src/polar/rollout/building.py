"""The last stage of a session: its calls become a trajectory."""

from __future__ import annotations

import logging
from types import MappingProxyType

from polar import trajectory
from polar.errors import JournalError, PolarError
from polar.rollout.endings import is_graded, reward_of
from polar.rollout.faults import describe
from polar.rollout.settings import RolloutSettings
from polar.store.base import Journal
from polar.types import BuildReport, Failed, Outcome, Session, Trajectory

__all__ = ["Building"]

_log = logging.getLogger("polar.rollout")
_UNBUILT = "unbuilt"


class Building:
    """Builds the trajectories of sessions that have ended.

    Args:
        journal: Where the calls are, and the outcomes.
        settings: How calls become traces.
    """

    def __init__(self, journal: Journal, settings: RolloutSettings) -> None:
        self._journal = journal
        self._settings = settings

    async def build(self, session: Session, outcome: Outcome) -> Trajectory:
        """Build one; a session whose traces cannot be built has failed, and teaches nothing.

        Its calls stay in the journal. What it sampled is dropped with the reason `unbuilt`.

        Raises:
            JournalError: The journal can no longer be read or written.
        """
        try:
            return await self._built(session, outcome)
        except JournalError:
            raise
        except Exception as error:
            _log.error(
                "session %s, attempt %d, while building",
                session.id,
                session.attempt,
                exc_info=error,
            )
            return await self._unbuilt(session, outcome, error)

    async def _built(self, session: Session, outcome: Outcome) -> Trajectory:
        calls = await self._journal.calls(session.id, session.attempt)
        built = trajectory.build(
            calls,
            builder=self._settings.builder,
            policy=self._settings.build_policy,
        )
        scores = await self._journal.scores(session.id, session.attempt)
        found = trajectory.credit(session, built, outcome, step_rewards=scores)
        return found or Trajectory(
            session_id=session.id,
            task_id=session.task_id,
            group_id=session.group_id,
            traces=built.traces,
            reward=reward_of(outcome),
            outcome=outcome,
            report=built.report,
        )

    async def _unbuilt(self, session: Session, outcome: Outcome, error: Exception) -> Trajectory:
        if is_graded(outcome):  # else it failed before, and that is the cause that counts
            cause = str(error) if isinstance(error, PolarError) else describe(error)
            outcome = Failed("building", cause)
            await self._journal.set_state(session, "failed", outcome)
        calls = await self._journal.calls(session.id, session.attempt)
        sampled = sum(len(call.sampled_ids) for call in calls)
        return Trajectory(
            session_id=session.id,
            task_id=session.task_id,
            group_id=session.group_id,
            traces=(),
            reward=reward_of(outcome),
            outcome=outcome,
            report=BuildReport(
                sampled=sampled,
                kept=0,
                dropped=MappingProxyType({_UNBUILT: sampled} if sampled else {}),
                forks=MappingProxyType({}),
                per_request_tokens=0,
                trace_tokens=0,
                tree_tokens=0,
            ),
        )
