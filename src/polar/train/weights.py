"""The weights in the two forms that training needs: computed with, and optimised in float32."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polar.errors import ConfigError, TrainingError
from polar.train.attention import ATTENTION_NAME
from polar.train.lora import LowRank, adapt
from polar.train.model import converted
from polar.train.ranks import Alone, Ranks
from polar.train.settings import TrainSettings
from polar.train.support import decoder_layers, tree_obstacle
from polar.train.trainable import Divided, Trainable, Whole

if TYPE_CHECKING:
    from polar.train.layer_shards import LayerShards

__all__ = ["Weights"]


@dataclass(frozen=True, slots=True)
class Weights:
    """A model to compute with, and the float32 masters of what is trained."""

    working: PreTrainedModel
    """Attends along trees; shares parameters with the user's model where dtypes allow."""
    trainables: tuple[Trainable, ...]
    adapters: tuple[LowRank, ...]
    obstacle: str | None = None
    """What keeps the model from being computed along trees; absent: it can be."""
    shards: LayerShards | None = None
    """How ranks that hold the layers in parts compute them; absent: each by itself."""

    @classmethod
    def of(
        cls, model: PreTrainedModel, settings: TrainSettings, ranks: Ranks | None = None
    ) -> Weights:
        """Set a model up for training; what the user's model computes follows every step.

        Args:
            model: The user's model. Of several ranks only the first gives it new weights.
            settings: What is trained, and in which dtype.
            ranks: Who trains with this process; nobody if left out.

        Raises:
            TrainingError: The model's weights are in a dtype that cannot be trained as set.
            ConfigError: A setting names layers that the model does not have, or asks for what this
                PyTorch cannot do.
        """
        dtype: torch.dtype = getattr(torch, settings.dtype)
        if model.dtype not in (dtype, torch.float32):
            raise TrainingError(
                f"the model's weights are {model.dtype}, which cannot be trained in {dtype}",
                fix="Load it in float32, or set dtype to that of the weights.",
            )
        ranks = ranks or Alone()
        if settings.shard == "layers" and ranks.size > 1:
            return cls._sharded(model, settings, ranks, dtype)
        working = _working_copy(model, dtype, ranks.device)
        obstacle = tree_obstacle(working)
        if obstacle is not None:
            working.set_attn_implementation(model.config._attn_implementation)
        if settings.lora is not None:
            return cls._adapted(working, model, settings, ranks, obstacle)
        _freeze(model, settings)
        trainables = tuple(
            _trainable(used, given, ranks)
            for used, given in zip(working.parameters(), model.parameters(), strict=True)
            if given.requires_grad
        )
        return cls(working, trainables, (), obstacle)

    @classmethod
    def _adapted(
        cls,
        working: PreTrainedModel,
        model: PreTrainedModel,
        settings: TrainSettings,
        ranks: Ranks,
        obstacle: str | None,
    ) -> Weights:
        assert settings.lora is not None
        with _known_layers():
            adapters = adapt(
                working, model, settings.lora, seed=settings.seed, served=not ranks.rank
            )
        factors = (factor for a in adapters for factor in (a.down, a.up))
        trainables = tuple(_trainable(f, f, ranks) for f in factors)
        return cls(working, trainables, tuple(adapters), obstacle)

    @classmethod
    def _sharded(
        cls, model: PreTrainedModel, settings: TrainSettings, ranks: Ranks, dtype: torch.dtype
    ) -> Weights:
        """Divide a model that is in main memory, layer by layer."""
        from polar.train.layer_shards import LayerShards, Shard, check_pytorch, twin
        from polar.train.lora_shards import branch_off, sharded_adapters

        check_pytorch()

        if settings.lora is None:
            _freeze(model, settings)
        working = twin(model)
        working.set_attn_implementation(ATTENTION_NAME)
        # Trying it needs every layer at once, as it is now.
        obstacle = ranks.gathered(None if ranks.rank else tree_obstacle(working))[0]
        if obstacle is not None:
            working.set_attn_implementation(model.config._attn_implementation)
        if settings.lora is None:
            shards = LayerShards(working, ranks, dtype=dtype)
            trainables = tuple(
                Shard.of(used, given, ranks)
                for used, given in zip(working.parameters(), model.parameters(), strict=True)
                if given.requires_grad
            )
            return cls(working, trainables, (), obstacle, shards)
        with _known_layers():
            branch_off(working, settings.lora, seed=settings.seed)
        shards = LayerShards(working, ranks, dtype=dtype)
        adapters = tuple(sharded_adapters(working, model, ranks))
        factors = tuple(factor for a in adapters for factor in (a.down, a.up))
        return cls(working, factors, adapters, obstacle, shards)

    @property
    def masters(self) -> list[Tensor]:
        """What the optimizer changes."""
        return [t.master for t in self.trainables]

    def collect_gradients(self) -> None:
        """Add the working gradients to the sums and clear them."""
        for t in self.trainables:
            t.collect()

    def finish_gradients(self) -> None:
        """Give the masters the gradient of all ranks."""
        for t in self.trainables:
            t.finish()

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        for t in self.trainables:
            t.clear()

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters to the working model and to the user's."""
        for t in self.trainables:
            t.publish()
        for adapter in self.adapters:
            adapter.merge()


def _working_copy(
    model: PreTrainedModel, dtype: torch.dtype, device: torch.device | None
) -> PreTrainedModel:
    """Copy modules and configuration, so that the engine keeps its own attention implementation.

    Parameters and buffers are shared if they have the right dtype, and are in the right place.
    """
    device = device or model.device
    fits = model.dtype == dtype and model.device == device
    shared = (*model.parameters(), *model.buffers()) if fits else ()
    working = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    working = converted(working, device=device, dtype=dtype)
    working.set_attn_implementation(ATTENTION_NAME)
    return working


def _freeze(model: PreTrainedModel, settings: TrainSettings) -> None:
    """Mark what is not to be trained."""
    frozen: list[nn.Module] = []
    if not settings.train_embeddings:
        frozen += [model.get_input_embeddings(), model.get_output_embeddings()]
    layers = decoder_layers(model, fix="Set frozen_layers to 0.")
    frozen += list(layers[: settings.frozen_layers])
    for module in frozen:
        module.requires_grad_(False)


@contextmanager
def _known_layers() -> Iterator[None]:
    """Say which setting names layers that there are not."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error), where="train.lora.target_modules") from error


def _trainable(used: nn.Parameter, given: nn.Parameter, ranks: Ranks) -> Trainable:
    used.requires_grad_(True)
    if ranks.size > 1:
        return Divided.of(used, given, ranks)
    master: Tensor = given
    if given.dtype != torch.float32:
        master = given.detach().float().requires_grad_(True)
    return Whole(used, master, given)
