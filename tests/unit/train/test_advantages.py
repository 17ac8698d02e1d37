"""Advantages are of sessions within their group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_cases import make_group, make_trace, make_trajectory

from polar.train.advantages import graded_sessions, group_advantages, grpo, rloo
from polar.types import Cancelled, Failed, Grade, TimedOut

rewards = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=2, max_size=16)


def group_of(*values, outcomes=None):
    trace = make_trace([1, 2, 3], [2])
    outcomes = outcomes or [None] * len(values)
    return make_group(
        *(
            make_trajectory(trace, reward=r, outcome=o)
            for r, o in zip(values, outcomes, strict=True)
        )
    )


def test_grpo_divides_the_distance_from_the_mean_by_the_deviation():
    found = group_advantages(group_of(1.0, 0.0, 0.0, 1.0), algorithm="grpo")
    np.testing.assert_allclose(found, np.array([1, -1, -1, 1]) * 0.5 / (np.sqrt(1 / 3) + 1e-4))


def test_dr_grpo_does_not_divide():
    found = group_advantages(group_of(1.0, 0.0, 0.0, 0.0), algorithm="dr_grpo")
    np.testing.assert_allclose(found, [0.75, -0.25, -0.25, -0.25])


def test_rloo_compares_with_the_mean_of_the_others():
    found = group_advantages(group_of(1.0, 0.0, 0.5), algorithm="rloo")
    np.testing.assert_allclose(found, [0.75, -0.75, 0.0])


@given(rewards)
def test_advantages_add_up_to_zero(values):
    array = np.array(values)
    assert abs(grpo(array).sum()) < 1e-6 * (1 + np.abs(grpo(array)).sum())
    assert abs(rloo(array).sum()) < 1e-9


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "rloo"])
def test_a_group_without_spread_has_no_advantages(algorithm):
    found = group_advantages(group_of(0.3, 0.3, 0.3), algorithm=algorithm)
    assert not found.any()


def test_a_session_with_more_traces_weighs_no_more():
    one, two = make_trace([1, 2, 3], [2]), make_trace([1, 2, 4], [2])
    group = make_group(make_trajectory(one, two, reward=1.0), make_trajectory(one, reward=0.0))
    np.testing.assert_allclose(group_advantages(group, algorithm="dr_grpo"), [0.5, -0.5])


BROKEN = [None, Failed("running", "sandbox died"), None, Cancelled("asked")]


def test_a_broken_session_is_left_out_of_the_baseline():
    group = group_of(1.0, 9.0, 0.0, 9.0, outcomes=BROKEN)
    found = group_advantages(group, algorithm="dr_grpo", failed="exclude")
    np.testing.assert_allclose(found, [0.5, 0.0, -0.5, 0.0])


def test_a_broken_session_counts_as_reward_zero_in_the_baseline_when_asked():
    group = group_of(1.0, 9.0, 0.0, 9.0, outcomes=BROKEN)
    found = group_advantages(group, algorithm="dr_grpo", failed="baseline")
    np.testing.assert_allclose(found, [0.75, 0.0, -0.25, 0.0])


def test_a_timed_out_session_counts_when_its_work_was_graded():
    graded, ungraded = TimedOut("running", Grade(0.0, False)), TimedOut("preparing")
    group = group_of(1.0, 0.0, 0.0, outcomes=[None, graded, ungraded])
    assert graded_sessions(group).tolist() == [True, True, False]
