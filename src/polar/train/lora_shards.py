"""Low-rank adapters of a model that several ranks hold in parts: branches beside frozen layers.

No rank ever holds the sum of a layer and its adapter, but the first one for the user's model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from polar.train.layer_shards import Shard
from polar.train.lora import Switch, first_factors, targets
from polar.train.ranks import Ranks
from polar.train.settings import LoraSettings

__all__ = ["Branch", "ShardedAdapter", "branch_off", "sharded_adapters"]


class Branch(nn.Module):
    """A frozen linear layer with an adapter at its side.

    Args:
        layer: The frozen one.
        factors: Down, up and scale.
    """

    def __init__(self, layer: nn.Linear, factors: tuple[nn.Parameter, nn.Parameter, float]) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.down, self.up, self.scale = factors
        self.switch = Switch()

    def forward(self, x: Tensor) -> Tensor:
        """Compute the sum of both."""
        found = linear(x, self.weight, self.bias)
        if not self.switch.on:
            return found
        return found + linear(linear(x, self.down), self.up) * self.scale


@dataclass(frozen=True, slots=True)
class ShardedAdapter:
    """One linear layer's adapter, in parts."""

    base: Shard
    down: Shard
    up: Shard
    scale: float
    served: Tensor | None
    """The weight of the user's model, on rank 0."""
    switch: Switch
    """Whether the layer computes with the adapter."""

    @torch.no_grad()
    def merge(self) -> None:
        """Write the sum of weight and adapter to the user's model; all ranks must."""
        base, up, down = (each.whole(each.master) for each in (self.base, self.up, self.down))
        if self.served is not None:
            self.served.copy_(torch.addmm(base, up, down, alpha=self.scale))


def branch_off(model: PreTrainedModel, settings: LoraSettings, *, seed: int) -> None:
    """Give the chosen linear layers of a whole model their branches, and freeze all else.

    Args:
        model: Changed in place, before it is divided.
        settings: Rank, scale and layers.
        seed: Seed of the factors' first values, which are those of a process that trains alone.

    Raises:
        ValueError: No layer has one of the names.
    """
    random = torch.Generator().manual_seed(seed)
    model.requires_grad_(False)
    for name, layer in targets(model, settings):
        factors = first_factors(layer, settings, random)
        model.set_submodule(name, Branch(layer, factors))


def sharded_adapters(
    model: PreTrainedModel, given: PreTrainedModel, ranks: Ranks
) -> Iterator[ShardedAdapter]:
    """Find the branches of a divided model.

    Args:
        model: What is computed with.
        given: The user's model, which shows the sums on rank 0.
        ranks: Who holds the other parts.
    """
    for name, module in model.named_modules():
        if isinstance(module, Branch):
            base, down, up = (
                Shard.of(each, None, ranks, shown=False)
                for each in (module.weight, module.down, module.up)
            )
            served = None if ranks.rank else given.get_parameter(f"{name}.weight")
            yield ShardedAdapter(base, down, up, module.scale, served, module.switch)
