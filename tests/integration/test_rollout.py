"""Sessions through their stages, with real processes."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest
from rollout_support import RENDERER, appeared, is_alive, plan, task, world

from polar.errors import EngineError, JournalError, RuntimeFailed
from polar.harnesses.shell import Shell
from polar.rollout import ExpertEngine, SessionEvent
from polar.train.settings import TrainSettings
from polar.train.standing import is_truncated
from polar.types import Completed, EvaluatorSpec, Failed, Grade, Message, TimedOut


async def test_groups_are_complete_and_hold_the_rewards_of_their_graders(tmp_path):
    good = task("ask what; write out 42", name="good")
    bad = task("ask what; write out 41", name="bad")
    async with world(tmp_path) as at:
        groups = await at.rollout().collect_all(plan(good, bad, samples=3))
    assert [group.task.id for group in groups] == ["good", "bad"]
    assert [[t.reward for t in group.trajectories] for group in groups] == [[1.0] * 3, [0.0] * 3]
    assert len({t.session_id for group in groups for t in group.trajectories}) == 6
    for group in groups:
        for trajectory in group.trajectories:
            assert trajectory.group_id == group.id
            assert trajectory.report.kept == trajectory.report.sampled > 0


async def test_a_session_passes_its_stages_in_order_and_leaves_no_folder(tmp_path):
    async with world(tmp_path) as at:
        (group,) = await at.rollout().collect_all(plan(task("ask what; write out 42")))
        (record,) = await at.journal.sessions()
        assert not any((tmp_path / "work").iterdir())
    session_id = group.trajectories[0].session_id
    assert at.states(session_id) == ["preparing", "ready", "running", "grading", "completed"]
    assert at.events[-1].trajectory is group.trajectories[0]
    assert (record.state, record.outcome) == ("completed", group.trajectories[0].outcome)


async def test_what_is_trained_is_sampled_from_all_tokens_whatever_the_harness_asks(tmp_path):
    async with world(tmp_path) as at:
        await at.rollout().collect_all(plan(task("narrow what")))
        await at.rollout(top_k=7).collect_all(plan(task("narrow what"), phase="eval"))
        sessions = await at.journal.sessions()
        calls = [call for each in sessions for call in await at.journal.calls(each.session.id)]
    applied = [(c.sampling.temperature, c.sampling.top_p, c.sampling.top_k) for c in calls]
    assert sorted(applied, key=str) == [(1.0, 1.0, 7), (1.0, 1.0, None)]


async def test_a_group_is_handed_out_while_others_run(tmp_path):
    slow = task(f"ask what; await {tmp_path}/go", name="slow")
    both = plan(slow, task("ask what", name="fast"))
    async with world(tmp_path) as at, aclosing(at.rollout().collect(both)) as groups:
        assert (await anext(groups)).task.id == "fast"
        (tmp_path / "go").touch()
        assert (await anext(groups)).task.id == "slow"


async def test_a_harness_without_a_call_fails_and_is_tried_again(tmp_path):
    async with world(tmp_path) as at:
        (group,) = await at.rollout(max_attempts=3).collect_all(plan(task("exit 3")))
        (record,) = await at.journal.sessions()
    outcome = group.trajectories[0].outcome
    assert isinstance(outcome, Failed)
    assert "no model call (exit 3)" in outcome.error
    assert (record.session.attempt, record.state) == (2, "failed")
    assert at.states(record.session.id).count("running") == 3
    assert at.states(record.session.id)[-1] == "failed"


async def test_a_second_attempt_counts_when_the_first_met_a_broken_engine(tmp_path):
    replies = [EngineError("out of order"), [7, 8, 9]]
    async with world(tmp_path, replies) as at:
        (group,) = await at.rollout(max_attempts=2).collect_all(plan(task("ask what")))
        (record,) = await at.journal.sessions()
        first = await at.journal.calls(record.session.id, 0)
    assert isinstance(group.trajectories[0].outcome, Completed)
    assert record.session.attempt == 1
    assert [call.finish_reason for call in first] == ["error"]
    assert group.trajectories[0].report.sampled == 3


async def test_a_harness_over_its_budget_is_killed_and_its_work_graded(tmp_path):
    over = task(f"ask what; write out 42; signal {tmp_path}/pid; await never", run_s=0.5)
    async with world(tmp_path) as at:
        (group,) = await at.rollout().collect_all(plan(over))
    outcome = group.trajectories[0].outcome
    assert isinstance(outcome, TimedOut)
    assert outcome.stage == "running"
    assert group.trajectories[0].reward == 1.0
    assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_paused_time_is_charged_to_nobody(tmp_path):
    budget_s = 1.0
    patient = task(f"signal {tmp_path}/pid; ask what; write out 42", run_s=budget_s)
    async with world(tmp_path) as at:
        await at.gateway.pause()
        collecting = asyncio.create_task(at.rollout().collect_all(plan(patient)))
        await appeared(tmp_path / "pid")
        await asyncio.sleep(1.5 * budget_s)
        await at.gateway.resume()
        (group,) = await collecting
    assert group.trajectories[0].outcome == Completed(Grade(1.0, True, {"failed": []}), exit_code=0)


async def test_a_grader_that_breaks_fails_its_session_only(tmp_path):
    broken = EvaluatorSpec("command", {"run": "/no/such/grader"})
    tasks = (task("ask what", name="b", evaluator=broken), task("ask what; write out 42"))
    async with world(tmp_path) as at:
        groups = await at.rollout(max_attempts=1).collect_all(plan(*tasks))
    outcomes = [group.trajectories[0].outcome for group in groups]
    assert isinstance(outcomes[0], Failed)
    assert outcomes[0].stage == "grading"
    assert isinstance(outcomes[1], Completed)


async def test_a_sandbox_that_does_not_start_fails_its_session_only(tmp_path):
    class Flaky:
        """The local runtime, whose first start fails."""

        def __init__(self, runtime):
            self.runtime, self.starts = runtime, 0

        @asynccontextmanager
        async def start(self, spec):
            self.starts += 1
            if self.starts == 1:
                raise RuntimeFailed("no room")
            async with self.runtime.start(spec) as sandbox:
                yield sandbox

    async with world(tmp_path) as at:
        at.runtime = flaky = Flaky(at.runtime)
        (group,) = await at.rollout(max_attempts=2).collect_all(plan(task("ask what")))
        (record,) = await at.journal.sessions()
        at.runtime = flaky.runtime
    assert isinstance(group.trajectories[0].outcome, Completed)
    assert record.session.attempt == 1


async def test_no_more_sandboxes_wait_than_the_buffer_holds(tmp_path):
    waits = task(f"ask what; await {tmp_path}/go")
    now, waiting = {}, []
    full = asyncio.Event()

    def watch(event: SessionEvent) -> None:
        now[event.session_id] = event.state
        states = list(now.values())
        waiting.append(states.count("preparing") + states.count("ready"))
        if states.count("ready") == 2 and states.count("running") == 1:
            full.set()

    async with world(tmp_path) as at:
        rollout = at.rollout(watch, prepare_workers=4, ready_buffer=2, run_workers=1)
        collecting = asyncio.create_task(rollout.collect_all(plan(waits, samples=6)))
        await full.wait()
        (tmp_path / "go").touch()
        await collecting
    assert max(waiting) == 2


async def test_cancelling_kills_the_harnesses_and_leaves_their_sessions_unfinished(tmp_path):
    waits = task(f"ask what; signal {tmp_path}/pid; await never", name="waits")
    async with world(tmp_path) as at:
        collecting = asyncio.create_task(at.rollout().collect_all(plan(waits)))
        await appeared(tmp_path / "pid")
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
        (record,) = await at.journal.sessions()
        calls = await at.journal.calls(record.session.id)
        assert not any((tmp_path / "work").iterdir())
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert (record.state, record.outcome) == ("running", None)
    assert [call.finish_reason for call in calls] == ["stop"]


async def test_leaving_the_iteration_early_cancels_the_other_groups(tmp_path):
    waits = task(f"ask what; signal {tmp_path}/pid; await never", name="waits")
    fast = task(f"await {tmp_path}/pid; ask what", name="fast")
    both = plan(waits, fast)
    async with world(tmp_path) as at, aclosing(at.rollout().collect(both)) as groups:
        assert (await anext(groups)).task.id == "fast"
        await groups.aclose()
        assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_a_full_disk_stops_the_collection_with_the_journals_own_error(tmp_path):
    async def full(call):
        raise JournalError("the disk is full")

    waits = task(f"signal {tmp_path}/pid; await never", name="waits")
    asks = task(f"await {tmp_path}/pid; ask what", name="asks")
    async with world(tmp_path) as at:
        at.journal.add_call = full
        with pytest.raises(JournalError, match="the disk is full"):
            await at.rollout().collect_all(plan(waits, asks))
    assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_a_finished_session_is_taken_over_under_the_same_weights_only(tmp_path):
    one = plan(task("ask what; write out 42"), samples=2, weight_version=0)
    async with world(tmp_path) as at:
        (first,) = await at.rollout().collect_all(one)
        asked = len(at.engine.requests)
        (again,) = await at.rollout().collect_all(one)
        assert len(at.engine.requests) == asked
        assert [t.report for t in again.trajectories] == [t.report for t in first.trajectories]
        assert [t.reward for t in again.trajectories] == [1.0, 1.0]
        await at.engine.load_weights(1, None)
        newer = plan(task("ask what; write out 42"), samples=2, weight_version=1)
        await at.rollout().collect_all(newer)
        assert len(at.engine.requests) == 2 * asked
        assert [r.session.attempt for r in await at.journal.sessions()] == [1, 1]


async def test_a_session_that_was_not_graded_runs_again(tmp_path):
    async with world(tmp_path) as at:
        await at.rollout(max_attempts=1).collect_all(plan(task("exit 1")))
        await at.rollout(max_attempts=1).collect_all(plan(task("exit 1")))
        (record,) = await at.journal.sessions()
    assert record.session.attempt == 1


async def test_a_harness_may_make_no_more_calls_than_its_limit(tmp_path):
    async with world(tmp_path) as at:
        greedy = task("ask a; ask b; ask c", max_calls=2)
        (group,) = await at.rollout().collect_all(plan(greedy))
        (record,) = await at.journal.sessions()
    outcome = group.trajectories[0].outcome
    assert outcome == Completed(outcome.grade, exit_code=1, cut_off="max_calls")
    assert record.outcome == outcome
    assert is_truncated(group.trajectories[0], TrainSettings())
    assert len(group.trajectories[0].traces[0].call_ids) == 2


async def test_a_session_that_ends_within_its_limit_of_calls_is_not_cut_off(tmp_path):
    async with world(tmp_path) as at:
        (group,) = await at.rollout().collect_all(plan(task("ask a; ask b", max_calls=2)))
    assert group.trajectories[0].outcome.cut_off is None
    assert not is_truncated(group.trajectories[0], TrainSettings())


LONG = "word " * 400


async def test_a_session_that_a_full_context_window_ended_is_cut_off(tmp_path):
    async with world(tmp_path, max_context=1000) as at:
        (group,) = await at.rollout().collect_all(plan(task(f"ask a; ask {LONG}")))
    outcome = group.trajectories[0].outcome
    assert (outcome.exit_code, outcome.cut_off) == (1, "context")
    assert is_truncated(group.trajectories[0], TrainSettings())


async def test_a_session_that_goes_on_after_a_full_context_window_is_not_cut_off(tmp_path):
    async with world(tmp_path, max_context=1000) as at:
        compacting = task(f"ask a; try {LONG}; ask b; write out 42")
        (group,) = await at.rollout().collect_all(plan(compacting))
    assert group.trajectories[0].outcome == Completed(group.trajectories[0].outcome.grade, 0)


async def test_a_refused_side_call_cuts_no_session_off(tmp_path):
    async with world(tmp_path) as at:
        at.harness = _Sided(at.harness._settings)
        (group,) = await at.rollout().collect_all(plan(task("ask a; try side", max_calls=1)))
        assert (await at.gateway.figures()).totals["refused_at_call_limit"] == 1
    assert group.trajectories[0].outcome.cut_off is None


class _Sided(Shell):
    """Takes calls that end in the word for calls that the harness did not make."""

    def kind_of(self, chat, headers):
        return "foreign" if chat.messages[-1].content == "side" else "main"


class _Picky(Shell):
    """Takes every exit code but 0 for its own failure."""

    def ended_well(self, result):
        return result.exit_code == 0


async def outcomes_of(tmp_path, instruction, *replies, **settings):
    """Run a task by a harness that tells how it ended; give the outcome, and its attempts."""
    async with world(tmp_path, replies or None, max_context=1000) as at:
        at.harness = _Picky(at.harness._settings)
        (group,) = await at.rollout(**settings).collect_all(plan(task(instruction, max_calls=2)))
        (record,) = await at.journal.sessions()
    return group.trajectories[0].outcome, record.session.attempt + 1


async def test_a_harness_that_breaks_fails_its_session_where_that_is_asked_for(tmp_path):
    outcome, attempts = await outcomes_of(
        tmp_path, "ask what; write out 42; exit 3", broken_harness="fail"
    )
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("the harness broke (exit 3)")
    assert attempts == 2


async def test_the_work_of_a_harness_that_breaks_is_judged_otherwise(tmp_path):
    outcome, attempts = await outcomes_of(tmp_path, "ask what; write out 42; exit 3")
    assert (outcome.exit_code, outcome.grade.reward, attempts) == (3, 1.0, 1)


@pytest.mark.parametrize(
    ("instruction", "limit"), [("ask a; ask b; ask c", "max_calls"), (f"ask {LONG}", "context")]
)
async def test_a_harness_that_ends_at_a_limit_has_not_broken(tmp_path, instruction, limit):
    outcome, attempts = await outcomes_of(
        tmp_path,
        f"ask first; {instruction}" if limit == "context" else instruction,
        broken_harness="fail",
    )
    assert isinstance(outcome, Completed)
    assert (outcome.exit_code, outcome.cut_off, attempts) == (1, limit, 1)


async def test_a_harness_that_ends_on_a_reply_that_was_cut_has_not_broken(tmp_path):
    outcome, _ = await outcomes_of(
        tmp_path, "ask what; exit 1", list(range(1, 9)), max_tokens=4, broken_harness="fail"
    )
    assert isinstance(outcome, Completed)
    assert outcome.exit_code == 1


async def test_a_first_request_that_does_not_fit_is_said_to_be_too_long(tmp_path):
    outcome, _ = await outcomes_of(tmp_path, f"ask {LONG}")
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("the first request has ")
    assert "context window does not hold" in outcome.error


async def test_a_side_call_that_fails_last_does_not_fail_its_session(tmp_path):
    replies = [[7, 8, 9], EngineError("out of order")]
    async with world(tmp_path, replies) as at:
        at.harness = _Sided(at.harness._settings)
        (group,) = await at.rollout(max_attempts=1).collect_all(
            plan(task("ask main; write out 42; try side"))
        )
        calls = await at.journal.calls(group.trajectories[0].session_id)
    endings = [(call.kind, call.finish_reason) for call in calls]
    assert endings == [("main", "stop"), ("foreign", "error")]
    assert isinstance(group.trajectories[0].outcome, Completed)
    assert group.trajectories[0].reward == 1.0


async def test_a_side_call_that_comes_last_does_not_hide_a_broken_engine(tmp_path):
    replies = [EngineError("out of order"), [7, 8, 9]]
    async with world(tmp_path, replies) as at:
        at.harness = _Sided(at.harness._settings)
        (group,) = await at.rollout(max_attempts=1).collect_all(plan(task("try main; try side")))
    outcome = group.trajectories[0].outcome
    assert isinstance(outcome, Failed)
    assert "the engine failed" in outcome.error


async def test_a_second_attempt_begins_in_a_clean_folder(tmp_path):
    replies = [EngineError("out of order"), [7, 8, 9]]
    leaving = task("absent left; write left over; ask what; write out 42")
    async with world(tmp_path, replies) as at:
        (group,) = await at.rollout(max_attempts=2).collect_all(plan(leaving))
        (record,) = await at.journal.sessions()
    assert record.session.attempt == 1
    assert group.trajectories[0].reward == 1.0


async def test_an_expert_begins_again_in_a_second_attempt(tmp_path):
    replies = ("first", "second", "third")
    expert = ExpertEngine(RENDERER.reply_ids)
    twice = task(f"ask a; once {tmp_path}/seen; ask b; ask c; write out 42")
    async with world(tmp_path, sampler=expert) as at:
        wanted = plan(twice, phase="warm_start")
        session_id = wanted.session_id(0, 0)
        expert.prepare({session_id: [Message("assistant", reply) for reply in replies]})
        (group,) = await at.rollout(max_attempts=2, broken_harness="fail").collect_all(wanted)
        calls = await at.journal.calls(session_id, 1)
    assert [call.reply.content for call in calls] == list(replies)
    assert group.trajectories[0].reward == 1.0
