"""Rates are tokens by the time they took."""

from polar.train.pace import pace


def test_a_step_is_divided_into_waiting_and_training():
    found = pace(tokens=(600, 300, 900), rollout_s=6.0, wait_s=1.0, train_s=3.0)
    assert found.step_s == 4.0
    assert (found.wait_share, found.train_share) == (0.25, 0.75)
    assert found.sampled_tokens_per_s == found.trained_tokens_per_s == 100.0
    assert found.computed_tokens_per_s == 300.0


def test_a_step_that_took_no_time_has_no_rates():
    found = pace(tokens=(1, 1, 1), rollout_s=0.0, wait_s=0.0, train_s=0.0)
    assert found.trained_tokens_per_s is found.wait_share is None
