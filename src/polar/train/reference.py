"""The reference: the model that training began with, which the policy is kept near to."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polar.train.attention import ATTENTION_NAME
from polar.train.lora import Adapter, switched_off
from polar.train.model import converted
from polar.train.policy import Policy
from polar.train.tree_batch import TreeBatch

__all__ = ["Reference"]


@dataclass(frozen=True, slots=True)
class Reference:
    """A policy that does not change."""

    policy: Policy
    adapters: tuple[Adapter, ...]
    """Adapters to compute without; empty: the policy's model is a frozen copy."""

    @classmethod
    def of(cls, model: PreTrainedModel, policy: Policy, adapters: tuple[Adapter, ...]) -> Reference:
        """Keep what `model` computes now.

        Args:
            model: Before its first training step.
            policy: The policy to be trained.
            adapters: What of it is trained; empty: its weights.
        """
        if adapters:
            return cls(policy, adapters)
        frozen = converted(
            copy.deepcopy(model), device=policy.model.device, dtype=policy.model.dtype
        ).requires_grad_(False)
        if policy.shares_prefixes:
            frozen.set_attn_implementation(ATTENTION_NAME)
        return cls(replace(policy, model=frozen), ())

    @torch.no_grad()
    def logprobs(self, batch: TreeBatch) -> Tensor:
        """Compute the logprob of every sample of a batch: float32 [samples]."""
        with switched_off(self.adapters):
            return self.policy.logprobs(batch)[0]
