"""Faults that nobody foresaw, in plug-ins and around them: they end their session, not the run."""

import logging
import sys
from contextlib import asynccontextmanager

import pytest
from rollout_support import plan, task, world

from polar.errors import SessionsBroken
from polar.harnesses.shell import Shell
from polar.types import Completed, EvaluatorSpec, Failed

GRADER = """
import asyncio, sys
from polar.types import Grade

GRADES = {
    "nothing": lambda: None,
    "no number": lambda: Grade(float("nan"), False),
    "a word": lambda: Grade("1", True),
    "objects": lambda: Grade(1.0, True, {"what": object()}),
}

class Breaking:
    def __init__(self, how):
        self.how = how

    @classmethod
    def from_config(cls, config):
        return cls(config["how"])

    async def grade(self, evaluation):
        if self.how == "raises":
            raise ValueError("never seen before")
        if self.how == "exits":
            sys.exit("done here")
        if self.how == "cancels itself":
            raise asyncio.CancelledError
        if self.how == "reads":
            open("/no/such/file")
        return GRADES[self.how]()
"""


@pytest.fixture
def breaking(tmp_path, monkeypatch):
    """Offer an evaluator of a third party that breaks as its settings say."""
    (tmp_path / "breaking_grader.py").write_text(GRADER)
    info = tmp_path / "breaking_grader-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: breaking_grader\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[polar.evaluators]\nbreaking = breaking_grader:Breaking"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda how: EvaluatorSpec("breaking", {"how": how})
    sys.modules.pop("breaking_grader", None)


GOOD = task("ask what; write out 42", name="good")


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("raises", "ValueError: never seen before"),
        ("exits", "SystemExit: done here"),
        ("cancels itself", "CancelledError"),
        ("reads", "FileNotFoundError: [Errno 2]"),
        ("nothing", "gave None, which is no grade"),
        ("no number", "gave the reward nan"),
        ("a word", "gave the reward '1'"),
        ("objects", "gave details that are no JSON"),
    ],
)
async def test_a_grader_of_a_plug_in_that_breaks_fails_its_session_only(
    tmp_path, breaking, how, cause
):
    broken = task("ask what; write out 42", name="broken", evaluator=breaking(how))
    async with world(tmp_path) as at:
        rollout = at.rollout(max_attempts=1, grade_workers=1, run_workers=1)
        failed, good = await rollout.collect_all(plan(broken, GOOD))
        record = next(r for r in await at.journal.sessions() if r.session.task_id == "broken")
        assert not any((tmp_path / "work").iterdir())
    outcome = failed.trajectories[0].outcome
    assert isinstance(outcome, Failed)
    assert outcome.stage == "grading"
    assert cause in outcome.error
    assert (record.state, record.outcome) == ("failed", outcome)
    assert failed.trajectories[0].report.sampled > 0
    assert good.trajectories[0].reward == 1.0


async def test_what_nobody_foresaw_is_in_the_log_with_its_traceback(tmp_path, breaking, caplog):
    broken = task("ask what", name="broken", evaluator=breaking("raises"))
    with caplog.at_level(logging.ERROR, "polar.rollout"):
        async with world(tmp_path) as at:
            await at.rollout(max_attempts=1).collect_all(plan(broken))
    (record,) = [r for r in caplog.records if r.name == "polar.rollout"]
    assert record.getMessage() == "session train-0000-000-00, attempt 0, while grading"
    assert "breaking_grader.py" in logging.Formatter().format(record)


class _Careless(Shell):
    """Cannot say how to start the sessions of one task."""

    def launch(self, request):
        if "careless" in request.instruction:
            raise KeyError("careless")
        return super().launch(request)


async def test_a_harness_that_breaks_fails_its_session_and_frees_its_slots(tmp_path):
    careless = task("careless", name="careless")
    async with world(tmp_path) as at:
        at.harness = _Careless(at.harness._settings)
        rollout = at.rollout(max_attempts=2, prepare_workers=1, ready_buffer=1, run_workers=1)
        failed, good = await rollout.collect_all(plan(careless, GOOD, samples=3))
        assert at.gateway.open_sessions == 0
    outcomes = [trajectory.outcome for trajectory in failed.trajectories]
    assert all(isinstance(outcome, Failed) for outcome in outcomes)
    assert {(outcome.stage, "KeyError: 'careless'" in outcome.error) for outcome in outcomes} == {
        ("running", True)
    }
    assert [trajectory.reward for trajectory in good.trajectories] == [1.0] * 3


async def test_a_sandbox_that_breaks_in_its_own_way_fails_its_session_only(tmp_path):
    class Leaky:
        """The local runtime, whose first sandbox breaks when it is taken down."""

        def __init__(self, runtime):
            self.runtime, self.starts = runtime, 0

        @asynccontextmanager
        async def start(self, spec):
            self.starts += 1
            first = self.starts == 1
            async with self.runtime.start(spec) as sandbox:
                yield sandbox
            if first:
                raise OSError("the device is busy")

    async with world(tmp_path) as at:
        at.runtime, runtime = Leaky(at.runtime), at.runtime
        (group,) = await at.rollout(max_attempts=2).collect_all(plan(GOOD))
        (record,) = await at.journal.sessions()
        at.runtime = runtime
    assert isinstance(group.trajectories[0].outcome, Completed)
    assert record.session.attempt == 1


async def test_a_fault_that_hits_every_session_stops_the_run(tmp_path, breaking):
    broken = task("ask what", name="broken", evaluator=breaking("raises"))
    async with world(tmp_path) as at:
        rollout = at.rollout(max_attempts=1, stop_after_failures=3, run_workers=1)
        with pytest.raises(SessionsBroken) as caught:
            await rollout.collect_all(plan(broken, samples=20))
        ended = [r for r in await at.journal.sessions() if r.outcome is not None]
    assert "3 sessions in a row" in caught.value.what
    assert "ValueError: never seen before" in caught.value.what
    assert "session train-0000-000-" in caught.value.where
    assert 3 <= len(ended) < 20


async def test_a_fault_that_hits_some_sessions_does_not_stop_the_run(tmp_path, breaking):
    broken = task("ask what", name="broken", evaluator=breaking("raises"))
    tasks = [broken, GOOD] * 4
    async with world(tmp_path) as at:
        rollout = at.rollout(max_attempts=1, stop_after_failures=2)
        for one in tasks:
            await rollout.collect_all(plan(one))
