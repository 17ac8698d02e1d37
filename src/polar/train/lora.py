"""Low-rank adapters that live merged in the weights, so that the engine samples from plain layers.

The forward pass is that of the merged weight alone. The backward pass computes the gradients of the
two factors as if the adapter were a branch of its own, and never the gradient of the full weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from polar.train.settings import LoraSettings

__all__ = [
    "Adapter",
    "LowRank",
    "Switch",
    "adapt",
    "first_factors",
    "switched_off",
    "targets",
]


@dataclass(slots=True)
class Switch:
    """Whether an adapter takes part in the computation."""

    on: bool = True
    """It does."""


class LowRank(Protocol):
    """An adapter of some linear layer."""

    @property
    def switch(self) -> Switch:
        """Whether the working model computes with it."""
        ...

    def merge(self) -> None:
        """Show the user's model what was learned."""
        ...


@dataclass(frozen=True, slots=True)
class Adapter:
    """One linear layer's adapter: its weight is always `base + scale * up @ down`."""

    base: Tensor
    """[outputs, inputs]; the weight without the adapter."""
    down: nn.Parameter
    """float32 [rank, inputs]"""
    up: nn.Parameter
    """float32 [outputs, rank]"""
    scale: float
    targets: tuple[Tensor, ...]
    """Weights that hold the sum: the working model's and the user's."""
    switch: Switch
    """Whether the working model computes with the sum."""

    @torch.no_grad()
    def merge(self) -> None:
        """Write the sum to the targets."""
        merged = torch.addmm(self.base.float(), self.up, self.down, alpha=self.scale)
        for target in self.targets:
            target.copy_(merged)


def adapt(
    working: nn.Module,
    given: nn.Module,
    settings: LoraSettings,
    *,
    seed: int,
    served: bool = True,
) -> list[Adapter]:
    """Replace the chosen linear layers of `working` by adapted ones, and freeze all else.

    Args:
        working: The model that is computed with; changed in place.
        given: The user's model with the same layers, which shows the merged weights.
        settings: Rank, scale and layers.
        seed: Seed of the factors' first values.
        served: Whether the user's model is to follow what is learned.

    Raises:
        ValueError: No layer has one of the names.
    """
    random = torch.Generator().manual_seed(seed)
    for parameter in (*working.parameters(), *given.parameters()):
        parameter.requires_grad_(False)
    adapters = []
    for name, layer in targets(working, settings):
        shown = given.get_parameter(f"{name}.weight")
        adapter = _new_adapter(layer, shown, settings, random)
        if not served:
            adapter = replace(adapter, targets=(layer.weight,))
        working.set_submodule(name, _AdaptedLinear(layer, adapter))
        adapters.append(adapter)
    return adapters


def targets(model: nn.Module, settings: LoraSettings) -> list[tuple[str, nn.Linear]]:
    """Find the linear layers that get an adapter, by name.

    Raises:
        ValueError: No layer has one of the names.
    """
    found = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in settings.target_modules
    ]
    if not found:
        raise ValueError(f"no linear layer is named {', '.join(settings.target_modules)}")
    return found


def first_factors(
    layer: nn.Linear, settings: LoraSettings, random: torch.Generator
) -> tuple[nn.Parameter, nn.Parameter, float]:
    """Make the factors of an adapter that does nothing yet: down, up and their scale."""
    outputs, inputs = layer.weight.shape
    device = layer.weight.device
    bound = 1.0 / math.sqrt(inputs)
    down = torch.empty(settings.rank, inputs).uniform_(-bound, bound, generator=random)
    up = nn.Parameter(torch.zeros(outputs, settings.rank, device=device))
    return nn.Parameter(down.to(device)), up, settings.alpha / settings.rank


@contextmanager
def switched_off(adapters: Sequence[LowRank]) -> Iterator[None]:
    """Let the working model compute without its adapters, for passes without gradient.

    No weight changes meanwhile, so that the user's model can be sampled from.
    """
    for adapter in adapters:
        adapter.switch.on = False
    try:
        yield
    finally:
        for adapter in adapters:
            adapter.switch.on = True


def _new_adapter(
    layer: nn.Linear, given: nn.Parameter, settings: LoraSettings, random: torch.Generator
) -> Adapter:
    down, up, scale = first_factors(layer, settings, random)
    return Adapter(
        base=given.detach().to(layer.weight.device, copy=True),
        down=down,
        up=up,
        scale=scale,
        targets=(layer.weight,) if layer.weight is given else (layer.weight, given),
        switch=Switch(),
    )


class _AdaptedLinear(nn.Module):
    def __init__(self, layer: nn.Linear, adapter: Adapter) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.down, self.up, self.scale = adapter.down, adapter.up, adapter.scale
        self._adapter = adapter

    def forward(self, x: Tensor) -> Tensor:
        if not self._adapter.switch.on:
            return linear(x, self._adapter.base.to(x.dtype), self.bias)
        result: Tensor = _MergedLinear.apply(  # type: ignore[no-untyped-call]
            x, self.weight, self.bias, self.down, self.up, self.scale
        )
        return result


class _MergedLinear(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - autograd passes inputs by position
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor,
        up: Tensor,
        scale: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, down, up)
        ctx.scale = scale
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, down, up = ctx.saved_tensors
        rows, grads = x.flatten(0, -2), grad.flatten(0, -2)
        through = grads @ up.to(grad.dtype) * ctx.scale  # [rows, rank]
        grad_up = grads.t() @ (rows @ down.to(x.dtype).t()) * ctx.scale
        grad_down = through.t() @ rows
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        return grad_x, None, None, grad_down.to(down.dtype), grad_up.to(up.dtype), None
