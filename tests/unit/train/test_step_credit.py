"""Credit by step: advantages of calls, against loops over sessions and calls."""

from __future__ import annotations

import dataclasses
import statistics

import numpy as np
import pytest
import torch
from gradient_cases import gradients_of, separate_logprobs
from hypothesis import given, settings
from hypothesis import strategies as st
from step_cases import made, make_session, make_step_group, plain_step_advantages
from train_cases import make_group, make_model, make_trace, make_trajectory

from polar.errors import FidelityError
from polar.train import Trainer, TrainSettings
from polar.train.lessons import credited_groups, group_lessons
from polar.train.standing import has_spread
from polar.trajectory import calls_in_order
from polar.types import Completed, Failed, Grade, TimedOut

ALGORITHMS = ["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"]
algorithms = st.sampled_from(ALGORITHMS)


def steps(**fields) -> TrainSettings:
    return TrainSettings(credit="steps", **fields)


def advantages_of(groups, chosen):
    """The advantages of each session's calls; None for one that does not train."""
    found = {id(c.trajectory): c.advantages for row in credited_groups(groups, chosen) for c in row}
    return [[found.get(id(t)) for t in group.trajectories] for group in groups]


def dr_grpo(*sessions, **fields):
    (found,) = advantages_of([make_group(*sessions)], steps(algorithm="dr_grpo", **fields))
    return [None if each is None else each.tolist() for each in found]


@settings(max_examples=40)
@given(st.integers(0, 10**6), algorithms, st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_advantages_are_those_of_a_loop_over_sessions_and_calls(seed, algorithm, discount):
    random = np.random.default_rng(seed)
    groups = [make_step_group(random) for _ in range(random.integers(1, 4))]
    found = advantages_of(groups, steps(algorithm=algorithm, discount=discount))
    expected = plain_step_advantages(groups, algorithm, discount)
    for group, values, plain in zip(groups, found, expected, strict=True):
        flat = [a for session in plain for a in session]
        if not any(abs(a) > 1e-9 for a in flat):
            continue
        for session, mine, its in zip(group.trajectories, values, plain, strict=True):
            assert mine is not None
            assert dict(zip(calls_in_order(session), mine, strict=True)) == pytest.approx(
                dict(zip(calls_in_order(session), its, strict=True)), rel=1e-6, abs=1e-9
            )


@settings(max_examples=20)
@given(st.integers(0, 10**6), algorithms, st.booleans())
def test_a_reward_that_only_the_last_call_has_is_the_outcome(seed, algorithm, scored):
    random = np.random.default_rng(seed)
    groups = [make_step_group(random, scores=False) for _ in range(2)]
    expected = lessons_of(groups, TrainSettings(algorithm=algorithm))
    if scored:
        groups = [
            make_group(*(paid_by_the_last_call(t) for t in group.trajectories)) for group in groups
        ]
    found = lessons_of(groups, steps(algorithm=algorithm))
    assert [len(values) for values in found] == [len(values) for values in expected]
    for values, others in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, others, rtol=1e-5, atol=1e-7)


def lessons_of(groups, chosen):
    return [
        lesson.advantages[lesson.trace.loss_mask] * lesson.weight
        for lesson in group_lessons(groups, chosen)
    ]


def paid_by_the_last_call(trajectory):
    last = calls_in_order(trajectory)[-1]
    return dataclasses.replace(trajectory, reward=0.0, step_rewards={last: trajectory.reward})


@settings(max_examples=20)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), algorithms)
def test_credit_by_outcome_is_bit_for_bit_what_it_was_whatever_the_scores(rewards, algorithm):
    chosen = TrainSettings(algorithm=algorithm)
    plain = make_group(*(make_trajectory(make_trace([1, 2, 3], [2]), reward=r) for r in rewards))
    scored = make_group(*(make_session([5.0], reward=r) for r in rewards))
    ((found, expected),) = zip(
        advantages_of([scored], chosen), advantages_of([plain], chosen), strict=True
    )
    assert [None if a is None else a.item() for a in found] == [
        None if a is None else a.item() for a in expected
    ]
    spread = np.ptp(rewards) > 0
    if algorithm == "dr_grpo" and spread:
        centred = np.array(rewards) - np.array(rewards).mean()
        assert [a.item() for a in found] == centred.tolist()


def test_the_same_call_of_the_other_sessions_is_the_baseline():
    found = dr_grpo(make_session([1.0, 0.0, 0.0]), make_session([0.0, 0.0, 2.0]))
    assert found == [[-0.5, -1.0, -1.0], [0.5, 1.0, 1.0]]


def test_a_session_that_makes_more_calls_has_one_vote():
    short, other = make_session([1.0, 1.0]), make_session([0.0, 0.0])
    long = make_session([1.0, 1.0, *[0.0] * 30])
    assert dr_grpo(short, other)[1] == [-1.0, -0.5]
    assert dr_grpo(long, other)[1] == [-1.0, -0.5]


def test_a_session_that_ended_stands_where_it_ended():
    found = dr_grpo(make_session([], reward=1.0, calls=1), make_session([], reward=0.0, calls=3))
    assert found == [[0.5], [-0.5, -0.5, -0.5]]


def test_what_a_call_costs_makes_fewer_calls_better():
    short = make_session([-0.125] * 2, reward=1.0)
    long = make_session([-0.125] * 4, reward=1.0)
    assert dr_grpo(short, long) == [[0.125, 0.125], [-0.125, -0.125, -0.0625, 0.0]]


def test_sessions_whose_calls_earn_alike_teach_nothing_though_early_calls_earn_more():
    group = make_group(*(make_session([1.0, 1.0, 1.0], reward=r) for r in (1.0, 1.0)))
    assert not has_spread(group, steps())
    assert credited_groups([group], steps()) == [[]]


def test_equal_outcomes_teach_by_their_scores_and_only_where_these_count():
    group = make_group(make_session([1.0, 0.0]), make_session([0.0, 1.0]))
    assert has_spread(group, steps())
    assert not has_spread(group, TrainSettings())
    broken = dataclasses.replace(group.trajectories[1], outcome=Failed("running", "lost"))
    assert not has_spread(make_group(group.trajectories[0], broken), steps())


def test_a_broken_session_in_the_baseline_earned_nothing_at_any_call():
    broken = dataclasses.replace(
        make_session([4.0, 4.0]), outcome=Failed("running", "lost"), step_rewards={}
    )
    found = dr_grpo(make_session([1.0, 1.0]), broken, failed_sessions="baseline")
    assert found == [[1.0, 0.5], None]
    alone = dr_grpo(make_session([1.0, 1.0]), make_session([0.0, 0.0]), broken)
    assert alone[2] is None
    assert alone[0] == [1.0, 0.5]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("train", [[1.0, 0.5], [-1.0, -0.5]]),
        ("baseline", [[1.0, 0.5], None]),
        ("exclude", [None, None]),
    ],
)
def test_truncated_sessions_count_as_the_policy_says(policy, expected):
    late = dataclasses.replace(
        make_session([0.0, 0.0]), outcome=TimedOut("running", Grade(0.0, False))
    )
    assert dr_grpo(make_session([1.0, 1.0]), late, truncated_sessions=policy) == expected


def test_what_length_costs_is_earned_with_the_outcome():
    penalty = {"max_tokens": 12, "buffer_tokens": 6, "penalty": 1.0}
    long, short = make_session([], calls=4, tokens=3), make_session([], calls=1, tokens=3)
    found = dr_grpo(long, short, overlong=penalty, discount=0.5)
    assert found == [[-0.0625, -0.125, -0.25, -0.5], [0.0625]]


def test_a_token_that_two_sessions_sampled_alike_has_the_advantage_of_each_ones_call():
    good, bad = make_session([1.0, 0.0]), make_session([0.0, 0.0])
    first, second = group_lessons([make_group(good, bad)], steps(algorithm="dr_grpo"))
    np.testing.assert_array_equal(first.trace.token_ids, second.trace.token_ids)
    trained = first.trace.loss_mask
    assert first.advantages[trained].tolist() == [0.5, 0.0]
    assert second.advantages[trained].tolist() == [-0.5, 0.0]
    metrics, found = gradient_of(Trainer(make_model(), steps()), [make_group(good, bad)])
    assert metrics.tree_saving == 2.0
    assert max(float(gradient.abs().max()) for gradient in found) < 1e-6


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("normalizer", ["token_mean", "session_mean", "constant"])
@settings(max_examples=3)
@given(seed=st.integers(0, 10**6))
def test_a_tree_has_the_gradient_of_separate_sequences_call_by_call(ratio, normalizer, seed):
    random = np.random.default_rng(seed)
    groups = [make_step_group(random) for _ in range(2)]
    chosen = steps(
        discount=0.9, correction="none", ratio=ratio, normalizer=normalizer, max_grad_norm=1e9
    )
    lessons = group_lessons(groups, chosen)
    plain, model = make_model(), make_model()
    loss = torch.zeros(())
    for lesson in lessons:
        gains = separate_logprobs(plain, lesson.trace)
        trained = torch.from_numpy(lesson.advantages[lesson.trace.loss_mask])
        loss = loss - lesson.weight * (gains * trained).sum()
    expected = gradients_of(plain, loss)
    metrics, found = gradient_of(Trainer(model, chosen), groups)
    assert metrics.tree_saving > 1.0
    for gradient, reference in zip(found, expected, strict=True):
        error = (gradient - reference).norm() / reference.norm().clamp(min=1e-8)
        assert error < 1e-4


def gradient_of(trainer, groups):
    found = []

    def keep():
        found.extend(p.grad.clone() for p in trainer.model.parameters())

    return trainer.step(groups, before_update=keep), found


def test_a_step_counts_the_calls_that_nobody_scored():
    group = make_group(make_session([1.0, None]), make_session([0.0, None, None]))
    assert Trainer(make_model(), steps()).step([group]).unscored_calls == 3
    assert Trainer(make_model(), TrainSettings()).step([group]).unscored_calls is None


def test_traces_that_do_not_say_whose_their_tokens_are_are_refused_by_step_alone():
    group = make_group(*(make_trajectory(made([1, 2, 3], [2]), reward=r) for r in (0.0, 1.0)))
    assert Trainer(make_model(), TrainSettings()).step([group]).trained_tokens == 2
    with pytest.raises(FidelityError, match="which of its tokens"):
        Trainer(make_model(), steps()).step([group])


def test_a_session_without_trained_calls_stands_in_the_baseline_with_its_outcome():
    empty = dataclasses.replace(
        make_session([1.0]), traces=(), step_rewards={}, outcome=Completed(Grade(1.0, True), 0)
    )
    empty = dataclasses.replace(empty, reward=1.0)
    assert dr_grpo(empty, make_session([], reward=0.0, calls=2)) == [None, [-0.5, -0.5]]


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8))
def test_the_deviation_is_that_of_the_sessions_whose_calls_earn_alike(rewards):
    group = make_group(*(make_session([], reward=r, calls=2) for r in rewards))
    (found,) = advantages_of([group], steps())
    if np.ptp(rewards) == 0:
        return
    mean, spread = statistics.fmean(rewards), statistics.stdev(rewards)
    for values, reward in zip(found, rewards, strict=True):
        expected = (reward - mean) / (spread + 1e-4)
        assert values.tolist() == pytest.approx([expected] * 2, rel=1e-6, abs=1e-9)
