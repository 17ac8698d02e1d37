"""Advantages are of sessions, whatever they are compared with."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_cases import make_group, make_trace, make_trajectory

from polar.train.advantages import STD_EPS, advantages, grpo, rloo
from polar.train.lessons import credited_groups
from polar.train.settings import TrainSettings
from polar.train.standing import graded_sessions
from polar.types import Cancelled, Failed, Grade, TimedOut

rewards = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=2, max_size=16)
ALGORITHMS = ["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"]


def group_of(*values, outcomes=None, traces=None):
    traces = traces or [make_trace([1, 2, 3], [2])]
    outcomes = outcomes or [None] * len(values)
    return make_group(
        *(
            make_trajectory(*traces, reward=r, outcome=o)
            for r, o in zip(values, outcomes, strict=True)
        )
    )


def credited(*groups, **settings):
    """The advantages of the sessions that train."""
    found = credited_groups(groups, TrainSettings(**settings))
    return [session.advantages.item() for group in found for session in group]


def test_grpo_divides_the_distance_from_the_mean_by_the_deviation():
    expected = np.array([1, -1, -1, 1]) * 0.5 / (np.sqrt(1 / 3) + STD_EPS)
    np.testing.assert_allclose(credited(group_of(1.0, 0.0, 0.0, 1.0)), expected)


@pytest.mark.parametrize("credit", ["outcome", "steps"])
@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "rloo"])
def test_a_group_whose_sessions_all_failed_teaches_nothing_and_ends_nothing(algorithm, credit):
    lost = Failed("running", "the engine is gone")
    settings = {"algorithm": algorithm, "credit": credit}
    assert credited(group_of(0.0, 0.0, outcomes=[lost, lost]), **settings) == []
    both = (group_of(0.0, 0.0, outcomes=[lost, lost]), group_of(1.0, 0.0))
    assert len(credited(*both, **settings)) == 2


def test_dr_grpo_does_not_divide():
    found = credited(group_of(1.0, 0.0, 0.0, 0.0), algorithm="dr_grpo")
    np.testing.assert_allclose(found, [0.75, -0.25, -0.25, -0.25])


def test_rloo_compares_with_the_mean_of_the_others():
    found = credited(group_of(1.0, 0.0, 0.5), algorithm="rloo")
    np.testing.assert_allclose(found, [0.75, -0.75, 0.0])


@given(st.lists(rewards, min_size=1, max_size=4))
def test_reinforce_pp_has_mean_0_and_deviation_1_over_the_step(groups):
    values = [r for group in groups for r in group]
    found = np.concatenate(advantages([np.array(g) for g in groups], "reinforce_pp"))
    spread = statistics.stdev(values)
    expected = [(r - statistics.fmean(values)) / (spread + STD_EPS) for r in values]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@given(st.lists(rewards, min_size=1, max_size=4))
def test_reinforce_pp_with_a_baseline_centres_each_group_and_scales_the_step(groups):
    centred = [r - statistics.fmean(group) for group in groups for r in group]
    found = np.concatenate(advantages([np.array(g) for g in groups], "reinforce_pp_baseline"))
    expected = [r / (statistics.stdev(centred) + STD_EPS) for r in centred]
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_group_without_spread_teaches_only_what_is_compared_over_the_step():
    good, mixed = group_of(1.0, 1.0), group_of(1.0, 0.0)
    assert credited(good, mixed)[:2] == pytest.approx([2**-0.5, -(2**-0.5)], rel=1e-3)
    assert len(credited(good, mixed, algorithm="reinforce_pp")) == 4
    assert credited(good, mixed, algorithm="reinforce_pp")[0] > 0


@given(rewards)
def test_advantages_add_up_to_zero(values):
    array = np.array(values)
    assert abs(grpo(array).sum()) < 1e-6 * (1 + np.abs(grpo(array)).sum())
    assert abs(rloo(array).sum()) < 1e-9


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rewards_without_spread_teach_nothing(algorithm):
    assert credited(group_of(0.3, 0.3, 0.3), algorithm=algorithm) == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(order=st.permutations(range(4)))
def test_the_order_of_sessions_does_not_matter(algorithm, order):
    values = np.array([0.0, 1.0, 0.25, 0.5])
    (found,), (other,) = (advantages([v], algorithm) for v in (values, values[order]))
    np.testing.assert_allclose(found[order], other, atol=1e-12)


def test_a_session_with_more_traces_weighs_no_more():
    one, two = make_trace([1, 2, 3], [2]), make_trace([1, 2, 4], [2])
    group = make_group(make_trajectory(one, two, reward=1.0), make_trajectory(one, reward=0.0))
    assert credited(group, algorithm="dr_grpo") == [0.5, -0.5]


BROKEN = [None, Failed("running", "sandbox died"), None, Cancelled("asked")]


def test_a_broken_session_is_left_out_of_the_baseline():
    group = group_of(1.0, 9.0, 0.0, 9.0, outcomes=BROKEN)
    assert credited(group, algorithm="dr_grpo", failed_sessions="exclude") == [0.5, -0.5]


def test_a_broken_session_counts_as_reward_zero_in_the_baseline_when_asked():
    group = group_of(1.0, 9.0, 0.0, 9.0, outcomes=BROKEN)
    assert credited(group, algorithm="dr_grpo", failed_sessions="baseline") == [0.75, -0.25]


def test_a_timed_out_session_counts_when_its_work_was_graded():
    graded, ungraded = TimedOut("running", Grade(0.0, False)), TimedOut("preparing")
    group = group_of(1.0, 0.0, 0.0, outcomes=[None, graded, ungraded])
    assert graded_sessions(group).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("train", [2 / 3, -1 / 3, -1 / 3]), ("baseline", [2 / 3, -1 / 3]), ("exclude", [0.5, -0.5])],
)
def test_a_truncated_session_trains_or_counts_or_is_left_out_as_declared(policy, expected):
    outcomes = [None, None, TimedOut("running", Grade(0.0, False))]
    group = group_of(1.0, 0.0, 0.0, outcomes=outcomes)
    found = credited(group, algorithm="dr_grpo", truncated_sessions=policy)
    np.testing.assert_allclose(found, expected)


def overlong(sampled: int, **settings) -> float:
    traces = [make_trace(range(sampled + 1), range(1, sampled + 1))]
    group = make_group(
        make_trajectory(*traces, reward=1.0), make_trajectory(make_trace([1, 2], [1]), reward=0.0)
    )
    (first, _) = credited(group, algorithm="dr_grpo", overlong=settings)
    return 1.0 - 2 * first


@pytest.mark.parametrize(
    ("sampled", "expected"), [(60, 0.0), (80, 0.0), (90, 0.25), (100, 0.5), (200, 0.5)]
)
def test_the_reward_falls_over_the_buffer_before_the_length_limit(sampled, expected):
    found = overlong(sampled, max_tokens=100, buffer_tokens=20, penalty=0.5)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"])
@given(passes=st.lists(st.integers(0, 7), min_size=1, max_size=6))
def test_a_group_whose_rewards_do_not_differ_has_no_advantage_at_all_whatever_is_beside_it(
    algorithm, passes
):
    others = [np.array([1.0] * n + [0.0] * (7 - n)) for n in passes]
    *_, all_passed, all_failed = advantages([*others, np.ones(7), np.zeros(7)], algorithm)
    assert not all_passed.any()
    assert not all_failed.any()
