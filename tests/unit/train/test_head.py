"""Chunked logprobs equal those of the whole vocabulary at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polar.train.head import sampled_logprobs


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_entropies_and_gradients_are_those_of_log_softmax(chunk, bias, temperature):
    torch.manual_seed(0)
    head, hidden = nn.Linear(6, 11, bias=bias), torch.randn(7, 6, requires_grad=True)
    rows, tokens = torch.tensor([0, 0, 2, 3, 3, 3, 6]), torch.tensor([1, 1, 4, 0, 10, 3, 2])
    leaves = [hidden, *head.parameters()]
    share, by_entropy = torch.randn(7), torch.randn(7)

    logs = (head(hidden) / temperature).log_softmax(-1)
    expected = logs[rows, tokens]
    expected_entropies = -(logs.exp() * logs).sum(-1)
    gradients = torch.autograd.grad((expected * share).sum(), leaves, retain_graph=True)
    both = (expected * share).sum() + (expected_entropies * by_entropy).sum()
    gradients_of_both = torch.autograd.grad(both, leaves)
    found, entropies = sampled_logprobs(
        hidden, head, rows=rows, tokens=tokens, temperature=temperature, chunk=chunk
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(entropies, expected_entropies)
    loss = (found * share).sum()
    for gradient, other in zip(
        torch.autograd.grad(loss, leaves, retain_graph=True), gradients, strict=True
    ):
        torch.testing.assert_close(gradient, other)
    loss = loss + (entropies * by_entropy).sum()
    for gradient, other in zip(torch.autograd.grad(loss, leaves), gradients_of_both, strict=True):
        torch.testing.assert_close(gradient, other)


def test_a_frozen_head_gets_no_gradient():
    head, hidden = nn.Linear(6, 11).requires_grad_(False), torch.randn(2, 6, requires_grad=True)
    index = torch.tensor([0, 1])
    sampled_logprobs(hidden, head, rows=index, tokens=index)[0].sum().backward()
    assert head.weight.grad is None
    assert hidden.grad is not None
