"""How busy the stages of a rollout were, from the changes of its sessions' stages."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from polar.rollout import RolloutSettings, SessionEvent

__all__ = ["StageUse"]

_ENDS = frozenset({"completed", "failed", "timed_out"})


class StageUse:
    """Adds up the seconds that sessions spend in each stage.

    Args:
        settings: How many slots each stage has.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, settings: RolloutSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slots = {
            "preparing": settings.prepare_workers,
            "ready": settings.ready_buffer,
            "running": settings.run_workers,
            "grading": settings.grade_workers,
        }
        self._clock = clock
        self._stages: dict[str, str] = {}
        self._busy: defaultdict[str, float] = defaultdict(float)
        self._since = self._seen = clock()

    def event(self, event: SessionEvent) -> None:
        """Count a session's change of stage."""
        self._advance()
        if event.state in _ENDS:
            self._stages.pop(event.session_id, None)
        else:
            self._stages[event.session_id] = event.state

    def take(self) -> Mapping[str, float]:
        """Tell the share of each stage's slots that was in use since the last time."""
        self._advance()
        passed = self._seen - self._since
        shares = {
            stage: self._busy[stage] / (slots * passed) if passed else 0.0
            for stage, slots in self._slots.items()
        }
        self._busy.clear()
        self._since = self._seen
        return shares

    def _advance(self) -> None:
        now = self._clock()
        for stage in tuple(self._stages.values()):
            self._busy[stage] += now - self._seen
        self._seen = now
