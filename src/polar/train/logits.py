"""What a model does with the products of its head before they are logits, found out by trying."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import PreTrainedModel

from polar.errors import TrainingError

__all__ = ["PLAIN", "Shaping"]

_TOKENS = 8
_TOLERANCE, _NARROW_TOLERANCE = 1e-3, 3e-2


@dataclass(frozen=True, slots=True)
class Shaping:
    """Logits are the head's products times a factor, and then softly capped, if at all."""

    scale: float = 1.0
    """The factor."""
    cap: float | None = None
    """Logits are `cap * tanh(logits / cap)`; absent: they are not capped."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> Shaping:
        """Find out what a model does, by a few tokens that go through all of it.

        Raises:
            TrainingError: It does something else.
        """
        products, logits = _tried(model)
        cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        scale = _factor(products, logits, cap)
        narrow = model.dtype.itemsize < torch.float32.itemsize
        allowed = _NARROW_TOLERANCE if narrow else _TOLERANCE
        found = cls(1.0 if abs(scale - 1.0) < allowed else scale, cap)
        if not (found.applied(products) - logits).norm() <= allowed * logits.norm():
            raise TrainingError(
                "the model's logits are not the products of its head, scaled or softly capped",
                fix="Train a model whose logits are.",
            )
        return found

    @property
    def cap_of_products(self) -> float | None:
        """The cap that products have before they are scaled."""
        return None if self.cap is None else self.cap / self.scale

    def applied(self, products: Tensor) -> Tensor:
        """Turn products of the head into logits."""
        scaled = products * self.scale
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)


PLAIN = Shaping()
"""Logits are the products."""


@torch.no_grad()
def _tried(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Products of the head and the model's own logits: float32 [tokens, vocabulary]."""
    head = model.get_output_embeddings()
    tokens = torch.arange(_TOKENS, device=model.device)[None] % head.weight.shape[0]
    hidden = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state[0]
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits[0]
    products = linear(hidden.to(head.weight.dtype), head.weight, head.bias)
    return products.float(), logits.float()


def _factor(products: Tensor, logits: Tensor, cap: float | None) -> float:
    """Find by what products were multiplied, from those that did not come near the cap."""
    if cap is not None:
        inside = logits.abs() < 0.9 * cap
        products, logits = products[inside], torch.atanh(logits[inside] / cap) * cap
    return float((logits * products).sum() / products.square().sum())
