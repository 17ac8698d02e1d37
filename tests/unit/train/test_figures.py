"""What a collection of sessions came to."""

from dataclasses import replace

from train_cases import make_group, make_trace, make_trajectory

from polar.train.figures import figures_of, passed
from polar.types import BuildReport, Cancelled, Completed, Ended, Failed, Grade, TimedOut


def test_a_session_passes_by_its_grade_alone():
    won, lost = Grade(0.3, True), Grade(0.9, False)
    for outcome, expected in (
        (Completed(won, 1), True),
        (Completed(lost, 0), False),
        (TimedOut("running", won), True),
        (TimedOut("running", lost), False),
        (TimedOut("preparing"), False),
        (Failed("grading", "broken"), False),
        (Cancelled("stopped"), False),
    ):
        assert passed(make_trajectory(reward=1.0, outcome=outcome)) is expected


def test_sessions_of_all_groups_are_added_up():
    trace = replace(make_trace([1, 2, 3, 4], [1, 3]), call_ids=("a", "b"))
    good = replace(
        make_trajectory(trace, reward=1.0),
        report=BuildReport(4, 3, {"too_long": 1}, {"rewritten": 2}, 9, 8, 7),
    )
    broken = make_trajectory(outcome=Failed("running", "broken"))
    late = make_trajectory(outcome=TimedOut("running", Grade(0.0, False)))
    figures = figures_of([make_group(good, good), make_group(broken, late)])
    assert (figures.sessions, figures.failed, figures.timed_out) == (4, 1, 1)
    assert (figures.reward_mean, figures.pass_rate) == (0.5, 0.5)
    assert (figures.calls, figures.sampled_tokens, figures.kept_tokens) == (4, 8, 6)
    assert figures.kept_share == 0.75
    assert (figures.reward_std, figures.session_tokens_mean) == (0.5, 2.0)
    assert figures.session_tokens_max == 4
    assert (figures.dropped, figures.forks) == ({"too_long": 2}, {"rewritten": 4})
    assert (figures.per_request_tokens, figures.unique_tokens) == (18, 14)


def test_no_sessions_are_no_division_by_zero():
    figures = figures_of([])
    assert (figures.sessions, figures.reward_mean, figures.kept_share) == (0, 0.0, 1.0)


def test_a_session_that_nobody_grades_has_not_failed():
    assert figures_of([make_group(make_trajectory(outcome=Ended(0)))]).failed == 0


def test_sessions_that_were_refused_further_calls_are_counted_by_limit():
    grade = Grade(0.0, False)
    outcomes = (Completed(grade, 0), Completed(grade, 1, "max_calls"), TimedOut("running", grade))
    group = make_group(*(make_trajectory(outcome=outcome) for outcome in outcomes))
    assert figures_of([group, group]).cut_off == {"max_calls": 2}


def test_graded_sessions_whose_harness_did_not_exit_with_0_are_counted():
    grade = Grade(0.0, False)
    outcomes = (Completed(grade, 0), Completed(grade, 137), Failed("running", "broken"))
    group = make_group(*(make_trajectory(outcome=outcome) for outcome in outcomes))
    assert figures_of([group]).nonzero_exits == 1
