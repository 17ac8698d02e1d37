"""The use of a stage is the share of its slots and of the time that sessions were in it."""

import pytest

from polar.cli.stage_use import StageUse
from polar.rollout import RolloutSettings, SessionEvent


def test_a_stage_is_as_busy_as_its_slots_are():
    now = 0.0
    use = StageUse(RolloutSettings(run_workers=2, grade_workers=1), lambda: now)
    use.event(SessionEvent("a", "running"))
    now = 4.0
    use.event(SessionEvent("b", "running"))
    use.event(SessionEvent("a", "grading"))
    now = 6.0
    use.event(SessionEvent("a", "completed"))
    now = 8.0
    shares = use.take()
    assert shares["running"] == pytest.approx((4 + 4) / (2 * 8))
    assert shares["grading"] == pytest.approx(2 / 8)
    assert shares["preparing"] == 0.0
    now = 9.0
    assert use.take()["running"] == pytest.approx(0.5)


def test_no_time_is_no_division_by_zero():
    assert set(StageUse(RolloutSettings(), lambda: 0.0).take().values()) == {0.0}
