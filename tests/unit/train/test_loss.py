"""The policy loss does what its papers say."""

from __future__ import annotations

import math

import pytest
import torch
from train_cases import make_group, make_trace, make_trajectory

from polar.train.lessons import group_lessons
from polar.train.loss import Samples, policy_loss
from polar.train.settings import TrainSettings


def loss_of(logprob, *, old=0.0, engine=0.0, advantage=1.0, weight=1.0, **settings):
    values = torch.tensor([logprob], requires_grad=True)
    samples = Samples(
        logprobs=values,
        old_logprobs=torch.tensor([old]),
        engine_logprobs=torch.tensor([engine]),
        advantages=torch.tensor([advantage]),
        weights=torch.tensor([weight]),
        traces=torch.tensor([0]),
        entropies=torch.tensor([0.0]),
    )
    result = policy_loss(samples, TrainSettings(**settings))
    result.loss.backward()
    return result, float(values.grad)


def test_on_policy_the_gradient_is_that_of_reinforce():
    _, gradient = loss_of(-1.0, old=-1.0, engine=-1.0, advantage=0.5, weight=0.25)
    assert gradient == pytest.approx(-0.125)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [(1.4, 1.0, True), (1.4, -1.0, False), (0.7, -1.0, True), (0.7, 1.0, False)],
)
def test_only_a_move_that_went_far_enough_is_clipped(ratio, advantage, clipped):
    result, gradient = loss_of(math.log(ratio), advantage=advantage, correction="none")
    assert bool(result.clipped[0]) is clipped
    assert (gradient == 0.0) is clipped


def test_the_upper_bound_is_apart_from_the_lower():
    higher, _ = loss_of(math.log(1.25), clip_low=0.2, clip_high=0.28, correction="none")
    lower, _ = loss_of(math.log(1.25), clip_low=0.2, clip_high=0.2, correction="none")
    assert not higher.clipped[0]
    assert lower.clipped[0]


def test_the_engines_deviation_is_weighed_and_capped():
    below, _ = loss_of(-1.0, old=-1.0, engine=-0.5)
    above, _ = loss_of(-1.0, old=-1.0, engine=-9.0, tis_cap=2.0)
    assert float(below.engine_weight) == pytest.approx(math.exp(-0.5))
    assert float(above.engine_weight) == 2.0


def test_without_recomputation_the_ratio_itself_is_to_the_engine():
    result, _ = loss_of(-1.0, old=-1.1, engine=-1.1, recompute=False)
    assert float(result.ratio) == pytest.approx(math.exp(0.1))
    assert float(result.engine_weight) == 1.0


def sequence_of(advantages, credit):
    """Ratio and gradient of one sequence of two tokens that have moved apart."""
    values = torch.tensor([-1.0, -2.0], requires_grad=True)
    samples = Samples(
        logprobs=values,
        old_logprobs=torch.tensor([-1.2, -2.1]),
        engine_logprobs=torch.tensor([-1.2, -2.1]),
        advantages=torch.tensor(advantages),
        weights=torch.tensor([0.5, 0.5]),
        traces=torch.tensor([0, 0]),
        entropies=torch.zeros(2),
    )
    chosen = TrainSettings(ratio="sequence", credit=credit, clip_high=1.0, clip_low=0.9)
    result = policy_loss(samples, chosen)
    result.loss.backward()
    return result.ratio.tolist(), values.grad.tolist()


def test_under_credit_by_step_tokens_share_the_ratio_of_their_sequence_and_not_its_gradient():
    ratio, gradient = sequence_of([1.0, -1.0], "steps")
    assert ratio == pytest.approx([math.exp(0.15)] * 2)
    assert gradient == pytest.approx([-0.5 * math.exp(0.15), 0.5 * math.exp(0.15)])
    assert sequence_of([1.0, -1.0], "outcome")[1] == pytest.approx([0.0, 0.0])


def test_where_all_tokens_of_a_sequence_have_one_advantage_both_credits_agree():
    ratio, gradient = sequence_of([2.0, 2.0], "steps")
    expected, its = sequence_of([2.0, 2.0], "outcome")
    assert (ratio, gradient) == (pytest.approx(expected), pytest.approx(its))


def two_sessions():
    short, long = make_trace(range(6), [5]), make_trace(range(20), range(10, 19))
    return make_group(make_trajectory(short, reward=1.0), make_trajectory(long, reward=0.0))


def weights_of(groups, **settings):
    return [lesson.weight for lesson in group_lessons(groups, TrainSettings(**settings))]


def test_token_mean_weighs_all_tokens_of_the_step_alike():
    assert weights_of([two_sessions(), two_sessions()]) == [1 / 20] * 4


def test_session_mean_weighs_all_sessions_alike():
    assert weights_of([two_sessions()], normalizer="session_mean") == [1 / 2, 1 / 18]


def test_a_constant_normaliser_does_not_depend_on_lengths():
    weights = weights_of([two_sessions()], normalizer="constant", normalizer_tokens=100)
    assert weights == [1 / 200] * 2


def test_a_session_with_no_advantage_counts_but_is_not_computed():
    trace = make_trace(range(6), [4, 5])
    group = make_group(*(make_trajectory(trace, reward=r) for r in (1.0, 0.5, 0.0)))
    assert weights_of([group]) == [1 / 6] * 2
