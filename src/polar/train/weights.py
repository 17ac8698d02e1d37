"""The weights in the two forms that training needs: computed with, and optimised in float32."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polar.errors import TrainingError
from polar.train.attention import ATTENTION_NAME, recompute_contexts

__all__ = ["Weights"]


@dataclass(frozen=True, slots=True)
class Weights:
    """A model to compute with, and the float32 masters of its trainable parameters.

    Where a parameter is float32 already, it is its own master.
    """

    working: PreTrainedModel
    """Attends along trees; shares its parameters with the model given by the user if their dtype
    is that of the computation."""
    pairs: tuple[tuple[nn.Parameter, Tensor], ...]
    """(working, master) of each trainable parameter; a master is the user's own parameter if that
    is float32."""
    served: tuple[tuple[nn.Parameter, Tensor], ...]
    """(parameter of the user's model, master) where they are not the same tensor."""

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        *,
        dtype: torch.dtype,
        train_embeddings: bool,
        gradient_checkpointing: bool = False,
    ) -> Weights:
        """Set a model up for training; what the user's model shows follows every step.

        Raises:
            TrainingError: The model's dtype is narrower than `dtype`.
        """
        if model.dtype not in (dtype, torch.float32):
            raise TrainingError(
                f"the model's weights are {model.dtype}, which cannot be trained in {dtype}",
                fix="Load it in float32 or in the training dtype.",
            )
        _freeze_embeddings(model, frozen=not train_embeddings)
        working = _twin(model) if model.dtype == dtype else _narrow_copy(model, dtype)
        working.set_attn_implementation(ATTENTION_NAME)
        if gradient_checkpointing:
            working.gradient_checkpointing_enable(
                {"use_reentrant": False, "context_fn": recompute_contexts}
            )
            working.train()
        pairs, served = [], []
        for given, used in zip(model.parameters(), working.parameters(), strict=True):
            if not given.requires_grad:
                continue
            used.requires_grad_(True)
            master: Tensor = given if given.dtype == torch.float32 else given.detach().float()
            master.requires_grad_(True)
            pairs.append((used, master))
            if master is not given:
                served.append((given, master))
        return cls(working, tuple(pairs), tuple(served))

    def masters(self) -> Iterator[Tensor]:
        """Yield the tensors that the optimizer changes."""
        return (master for _, master in self.pairs)

    def collect_gradients(self) -> None:
        """Add the working gradients to the masters' and clear them."""
        for used, master in self.pairs:
            if used is master or used.grad is None:
                continue
            gradient = used.grad.to(master.dtype)
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            used.grad = None

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        for used, master in self.pairs:
            used.grad = master.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters to the working model and to the user's."""
        for target, master in (*self.pairs, *self.served):
            if target is not master:
                target.copy_(master)


def _freeze_embeddings(model: PreTrainedModel, *, frozen: bool) -> None:
    if not frozen:
        return
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        for parameter in module.parameters():
            parameter.requires_grad_(False)


def _twin(model: PreTrainedModel) -> PreTrainedModel:
    """Copy the modules and the configuration, but share every parameter and buffer.

    The engine that samples from `model` keeps its own attention implementation.
    """
    shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def _narrow_copy(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    return copy.deepcopy(model).to(dtype)
