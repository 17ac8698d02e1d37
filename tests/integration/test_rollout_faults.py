"""Faults that nobody foresaw, in plug-ins and around them: they end their session, not the run."""

import asyncio
import itertools
import logging
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from rollout_support import plan, task, world

from polar.cli.recordings import of_run
from polar.cli.run_folder import RunFolder
from polar.cli.verify import verify_run
from polar.cli.work import write_trajectories
from polar.errors import SessionsBroken
from polar.harnesses.shell import Shell
from polar.train.figures import figures_of
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
        assert (await at.gateway.figures()).open_sessions == 0
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


def spoil(journal, *, task_id="spoilt", times=1000):
    """Let calls of a task's sessions come into the journal with a logprob that is no number."""
    add, left = journal.add_call, itertools.repeat(None, times)

    async def add_spoilt(call):
        (record,) = [r for r in await journal.sessions() if r.session.id == call.session_id]
        if record.session.task_id == task_id and next(left, "none") is None:
            call = replace(call, logprobs=np.full_like(call.logprobs, np.nan))
        await add(call)

    journal.add_call = add_spoilt


SPOILT = task("ask what; write out 42", name="spoilt")


async def test_a_session_whose_traces_cannot_be_built_fails_and_the_run_goes_on(tmp_path, caplog):
    async with world(tmp_path) as at:
        spoil(at.journal)
        failed, good = await at.rollout(max_attempts=1).collect_all(plan(SPOILT, GOOD, samples=2))
        records = {r.session.id: r for r in await at.journal.sessions()}
        for one in failed.trajectories:
            assert isinstance(one.outcome, Failed)
            assert one.outcome.stage == "building"
            assert "the logprob of sampled token 0 is nan" in one.outcome.error
            assert (one.traces, one.reward) == ((), 0.0)
            assert one.report.dropped == {"unbuilt": one.report.sampled}
            record = records[one.session_id]
            assert (record.state, record.outcome) == ("failed", one.outcome)
            assert at.states(one.session_id)[-2:] == ["grading", "failed"]
    assert [t.reward for t in good.trajectories] == [1.0, 1.0]
    assert figures_of([failed, good]).failed_while == {"building": 2}
    told = [record.getMessage() for record in caplog.records if record.name == "polar.rollout"]
    assert "session train-0000-000-00, attempt 0, while building" in told


async def test_a_session_whose_traces_cannot_be_built_is_tried_again(tmp_path):
    async with world(tmp_path) as at:
        spoil(at.journal, times=1)
        (group,) = await at.rollout(max_attempts=2).collect_all(plan(SPOILT))
        (record,) = await at.journal.sessions()
    assert group.trajectories[0].reward == 1.0
    assert record.session.attempt == 1


async def test_sessions_whose_traces_cannot_be_built_stop_the_run_when_there_are_many(tmp_path):
    async with world(tmp_path) as at:
        spoil(at.journal)
        rollout = at.rollout(max_attempts=1, stop_after_failures=3, run_workers=1)
        with pytest.raises(SessionsBroken, match=r"3 sessions in a row.*failed while building"):
            await rollout.collect_all(plan(SPOILT, samples=20))


async def test_a_finished_session_whose_traces_cannot_be_built_is_not_taken_over(tmp_path):
    async with world(tmp_path) as at:
        await at.rollout(max_attempts=1).collect_all(plan(GOOD))
        (record,) = await at.journal.sessions()
        (call,) = await at.journal.calls(record.session.id)
        spoilt = replace(call, logprobs=np.full_like(call.logprobs, np.nan), id="spoilt", index=1)
        await at.journal.add_call(spoilt)
        (group,) = await at.rollout(max_attempts=1).collect_all(plan(GOOD))
        (record,) = await at.journal.sessions()
    assert group.trajectories[0].reward == 1.0
    assert record.session.attempt == 1


async def _roll_out_spoilt(run):
    async with world(run) as at:
        spoil(at.journal)
        return await at.rollout(max_attempts=1).collect_all(plan(SPOILT, GOOD))


@pytest.fixture
def spoilt_run(tmp_path):
    """A run folder whose first session cannot be built."""
    groups = asyncio.run(_roll_out_spoilt(tmp_path))
    (tmp_path / "config.yaml").write_text("model: smollm2-135m\nrollout: {}\n")
    return RunFolder(tmp_path), groups


def test_a_session_that_could_not_be_built_is_named_once_when_the_run_is_verified(spoilt_run):
    run, groups = spoilt_run
    write_trajectories(run.path, "train", 0, groups)
    violations = verify_run(run).violations
    (of_session,) = [v for v in violations if not v.startswith("engine.tape")]
    assert of_session.startswith("train-0000-000-00, attempt 0: the logprob of sampled token 0")


def test_sessions_that_could_not_be_built_do_not_keep_the_others_from_being_read(spoilt_run):
    read = of_run(spoilt_run[0], lambda phase: True)
    assert [trajectory.task_id for trajectory in read] == ["good"]
