"""Logprobs of sampled tokens without the logits of a whole batch in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

__all__ = ["sampled_logprobs"]


def sampled_logprobs(  # noqa: PLR0913 - by name
    hidden: Tensor,
    head: nn.Linear,
    *,
    rows: Tensor,
    tokens: Tensor,
    temperature: float = 1.0,
    chunk: int = 256,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the logprobs of some tokens under `softmax(logits / temperature)`.

    Logits exist for `chunk` rows at a time, and are computed again in the backward pass.

    Args:
        hidden: [rows, hidden_size]; with gradient.
        head: The output head; its weight gets a gradient if it requires one.
        rows: int64 [samples], ascending; the row of `hidden` that predicts each sample.
        tokens: int64 [samples]; the token of each sample.
        temperature: Logits are divided by it.
        chunk: Rows whose logits are in memory at once.
        cap: Logits are `cap * tanh(product / cap)`; absent: the products of the head as they are.

    Returns:
        Logprobs float32 [samples], and entropies float32 [rows] of the distributions, both with
        gradient.
    """
    narrow = hidden.to(head.weight.dtype)  # recurrent layers sum up in float32
    logprobs, entropies = _SampledLogprobs.apply(  # type: ignore[no-untyped-call]
        narrow, head.weight, head.bias, rows, tokens, temperature, chunk, cap
    )
    return logprobs, entropies


class _SampledLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - autograd passes inputs by position
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Tensor,
        tokens: Tensor,
        temperature: float,
        chunk: int,
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(rows.shape, dtype=torch.float32, device=hidden.device)
        entropies = torch.empty(hidden.shape[:1], dtype=torch.float32, device=hidden.device)
        for start, stop, samples in _chunks(rows, hidden.shape[0], chunk):
            logits = _logits(hidden[start:stop], weight, bias, temperature, cap=cap)
            logs = logits.log_softmax(-1)
            logprobs[samples] = logs[rows[samples] - start, tokens[samples]]
            entropies[start:stop] = -torch.linalg.vecdot(logs.exp(), logs)
        ctx.save_for_backward(hidden, weight, bias, rows, tokens)
        ctx.temperature, ctx.chunk, ctx.cap = temperature, chunk, cap
        ctx.set_materialize_grads(False)  # entropies are seldom part of the loss
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, by_entropy: Tensor | None) -> tuple[Any, ...]:
        hidden, weight, bias, rows, tokens = ctx.saved_tensors
        grad = rows.new_zeros(rows.shape, dtype=torch.float32) if grad is None else grad
        grad_hidden = torch.empty_like(hidden)
        grad_weight = (
            torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        )
        grad_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        for start, stop, samples in _chunks(rows, hidden.shape[0], ctx.chunk):
            logits = _logits(hidden[start:stop], weight, bias, ctx.temperature, cap=ctx.cap)
            d_logits = _logits_gradient(
                logits,
                rows=rows[samples] - start,
                tokens=tokens[samples],
                share=grad[samples],
                by_entropy=None if by_entropy is None else by_entropy[start:stop],
            )
            if ctx.cap is not None:
                d_logits -= d_logits * logits.mul_(ctx.temperature / ctx.cap).square_()
            narrow = d_logits.div_(ctx.temperature).to(weight.dtype)
            grad_hidden[start:stop] = narrow @ weight
            if grad_weight is not None:
                grad_weight += narrow.t() @ hidden[start:stop]
            if grad_bias is not None:
                grad_bias += narrow.sum(0)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None


def _logits_gradient(
    logits: Tensor, *, rows: Tensor, tokens: Tensor, share: Tensor, by_entropy: Tensor | None
) -> Tensor:
    """Gradient of the logits: float32 [rows, vocabulary].

    With p the distribution and H its entropy: `onehot - p` for a logprob, `-p (log p + H)` for an
    entropy.
    """
    likely = logits.softmax(-1)
    towards = -logits.new_zeros(logits.shape[0]).index_add_(0, rows, share)[:, None]
    if by_entropy is None:
        gradient = likely.mul_(towards)
    else:
        logs = logits.log_softmax(-1)
        entropies = -torch.linalg.vecdot(likely, logs)[:, None]
        gradient = likely.mul_(towards - by_entropy[:, None] * logs.add_(entropies))
    return gradient.index_put_((rows, tokens), share, accumulate=True)


def _chunks(rows: Tensor, size: int, chunk: int) -> list[tuple[int, int, slice]]:
    """Row ranges, each with the slice of the samples that they predict."""
    edges = [*range(0, size, chunk), size]
    cuts = torch.searchsorted(rows, torch.tensor(edges, device=rows.device)).tolist()
    return [
        (a, b, slice(i, j)) for a, b, i, j in zip(edges, edges[1:], cuts, cuts[1:], strict=False)
    ]


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, *, cap: float | None
) -> Tensor:
    """float32 [rows, vocabulary]; the product is computed in the dtype of the weight."""
    logits = linear(hidden, weight, bias).float()
    if cap is not None:
        logits = logits.div_(cap).tanh_().mul_(cap)
    return logits if temperature == 1.0 else logits.div_(temperature)
