"""Logprobs and gradients of trees, and of the same traces as separate sequences."""

from __future__ import annotations

import numpy as np
import torch
from train_cases import DEVICE

from polar.train.kernels import choose_kernel
from polar.train.policy import Policy
from polar.train.tree_batch import plan_batches


def separate_logprobs(model, trace, temperature=1.0):
    """The logprobs of a trace's trained tokens by the plain model, one sequence at a time."""
    ids = torch.from_numpy(trace.token_ids).long().to(model.device)[None]
    logits = model(input_ids=ids, use_cache=False).logits[0].float() / temperature
    at = torch.from_numpy(np.flatnonzero(trace.loss_mask)).to(model.device)
    return logits[at - 1].log_softmax(-1)[torch.arange(at.numel()), ids[0, at]]


def coefficients(count):
    return torch.linspace(-1.0, 2.0, count, device=DEVICE)


def gradients_of(model, loss):
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.requires_grad]


def separate_gradients(model, traces, temperature=1.0):
    parts = [separate_logprobs(model, t, temperature) for t in traces]
    values = torch.cat(parts)
    return values.detach(), gradients_of(model, (values * coefficients(values.numel())).sum())


def slots_of(batch, traces):
    """The index of each sample among all trained tokens, in the order of the traces."""
    counts = [int(t.loss_mask.sum()) for t in traces]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = [
        int(traces[i].loss_mask[:p].sum())
        for i, p in zip(batch.sample_traces, batch.sample_positions, strict=True)
    ]
    return torch.from_numpy(starts[batch.sample_traces] + np.array(rank)).to(DEVICE)


def tree_gradients(model, traces, *, max_tokens=10_000, **policy):
    """The same through trees, samples put back into the order of the traces."""
    values = torch.empty(sum(int(t.loss_mask.sum()) for t in traces), device=DEVICE)
    share, loss = coefficients(values.numel()), 0.0
    policy = Policy(model, logits_per_chunk=5, kernel=choose_kernel(model)[0], **policy)
    for batch in plan_batches(traces, max_tokens=max_tokens, max_trace_tokens=1000)[0]:
        logprobs, _ = policy.logprobs(batch)
        slot = slots_of(batch, traces)
        values[slot] = logprobs.detach()
        loss = loss + (logprobs * share[slot]).sum()
    return values, gradients_of(model, loss)


def learned_gradients(model, traces, *, max_tokens=10_000, share=True, **policy):
    """The same, piece by piece."""
    model.zero_grad()
    values = torch.empty(sum(int(t.loss_mask.sum()) for t in traces), device=DEVICE)
    weights = coefficients(values.numel())
    kernel = choose_kernel(model)[0]
    policy = Policy(model, logits_per_chunk=5, kernel=kernel, shares_prefixes=share, **policy)
    limits = {"max_tokens": max_tokens, "max_trace_tokens": 1000, "share": share}
    for batch in plan_batches(traces, **limits)[0]:
        slot = slots_of(batch, traces)
        values[slot], _ = policy.learn(
            batch, lambda samples, logprobs, _, slot=slot: (logprobs * weights[slot[samples]]).sum()
        )
    return values, [p.grad.clone() for p in model.parameters() if p.requires_grad]


def assert_same(actual, expected, tolerance=1e-4):
    values, gradients = actual
    expected_values, expected_gradients = expected
    torch.testing.assert_close(values, expected_values, rtol=0, atol=1e-5)
    for gradient, reference in zip(gradients, expected_gradients, strict=True):
        error = (gradient - reference).norm() / reference.norm().clamp(min=1e-8)
        assert error < tolerance
