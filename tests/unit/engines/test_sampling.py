"""What is drawn, and the logprob it is said to have."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polar.engines.embedded.sampling import sample_rows
from polar.types import Sampling

LOGITS = torch.tensor([2.0, -1.0, 0.5, 1.0, -3.0])
DRAWS = st.floats(0.0, 1.0, exclude_max=True)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([0.1, 0.6, 0.95, 1.0]),
    top_k=st.sampled_from([None, 1, 2, 99]),
)


def shares(sampling, count=4000):
    """Sample with evenly spaced draws, so that shares are probabilities."""
    draws = [(index + 0.5) / count for index in range(count)]
    found = sample_rows(LOGITS.expand(count, -1), [sampling] * count, draws)
    counted = {}
    for each in found:
        counted.setdefault(each.token_id, [each.logprob, 0])[1] += 1 / count
    return counted


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.4),
        Sampling(top_k=3),
        Sampling(top_p=0.7),
        Sampling(temperature=2.0, top_k=4, top_p=0.9),
    ],
)
def test_a_logprob_is_that_of_the_distribution_that_is_drawn_from(sampling):
    for logprob, share in shares(sampling).values():
        assert math.exp(logprob) == pytest.approx(share, abs=1e-3)


def test_temperature_divides_the_logits():
    found = sample_rows(LOGITS[None], [Sampling(temperature=0.5)], [0.0])[0]
    assert found.logprob == pytest.approx((LOGITS * 2).log_softmax(0)[found.token_id].item())


def test_top_k_leaves_the_likeliest_tokens():
    assert set(shares(Sampling(top_k=2))) == {0, 3}


def test_top_p_leaves_the_fewest_tokens_that_reach_it():
    probabilities = LOGITS.softmax(0)
    assert set(shares(Sampling(top_p=probabilities[0].item() + 0.01))) == {0, 3}
    assert set(shares(Sampling(top_p=1e-9))) == {0}


def test_a_greedy_choice_is_the_likeliest_token_and_certain():
    found = sample_rows(LOGITS[None], [Sampling(temperature=0.0)], [0.99])[0]
    assert (found.token_id, found.logprob) == (0, 0.0)


@given(st.lists(st.tuples(SAMPLINGS, DRAWS), min_size=1, max_size=5))
def test_a_row_is_sampled_as_if_it_were_alone(rows):
    logits = torch.stack([LOGITS.roll(index) for index in range(len(rows))])
    together = sample_rows(logits, [row[0] for row in rows], [row[1] for row in rows])
    for index, (sampling, draw) in enumerate(rows):
        assert sample_rows(logits[index, None], [sampling], [draw]) == [together[index]]


@given(SAMPLINGS, st.sampled_from([0.0, 0.5, math.nextafter(1.0, 0.0)]))
def test_an_impossible_token_is_never_drawn(sampling, draw):
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    found = sample_rows(logits, [sampling], [draw])[0]
    assert found.token_id in (1, 3)
    assert math.isfinite(found.logprob)
