"""The reference: the model that training began with, which the policy is kept near to."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor
from transformers import PreTrainedModel

from polar.train.attention import ATTENTION_NAME
from polar.train.lora import LowRank, switched_off
from polar.train.model import converted
from polar.train.policy import Policy
from polar.train.tree_batch import TreeBatch

if TYPE_CHECKING:
    from polar.train.layer_shards import LayerShards

__all__ = ["Reference"]


@dataclass(frozen=True, slots=True)
class Reference:
    """A policy that does not change."""

    policy: Policy
    adapters: tuple[LowRank, ...]
    """Adapters to compute without; empty: the policy's model is a frozen copy."""

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        policy: Policy,
        adapters: tuple[LowRank, ...],
        shards: LayerShards | None = None,
    ) -> Reference:
        """Keep what `model` computes now.

        Args:
            model: Before its first training step.
            policy: The policy to be trained.
            adapters: What of it is trained; empty: its weights.
            shards: How the policy's model is divided among ranks, if it is.
        """
        if adapters:
            return cls(policy, adapters)
        if shards is not None:
            return cls._sharded(model, policy, shards)
        frozen = converted(
            copy.deepcopy(model), device=policy.model.device, dtype=policy.model.dtype
        ).requires_grad_(False)
        if policy.shares_prefixes:
            frozen.set_attn_implementation(ATTENTION_NAME)
        return cls(replace(policy, model=frozen), ())

    @classmethod
    def _sharded(cls, model: PreTrainedModel, policy: Policy, shards: LayerShards) -> Reference:
        from polar.train.layer_shards import twin

        frozen = twin(model, shards.dtype).requires_grad_(False)
        if policy.shares_prefixes:
            frozen.set_attn_implementation(ATTENTION_NAME)
        return cls(replace(policy, model=frozen, lockstep=shards.another(frozen)), ())

    def logprobs(self, batch: TreeBatch) -> Tensor:
        """Compute the logprob of every sample of a batch, without gradient: float32 [samples]."""
        with switched_off(self.adapters):
            return self.policy.measure(batch)[0]
