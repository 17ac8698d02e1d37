"""Matrix products with weights laid out for few rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Linear"]

_ROWS = 64
"""oneDNN's layout for this many rows serves any number of them well."""


class Linear:
    """A product with several weights at once, their outputs side by side.

    oneDNN re-orders plain weights at every product; with eight rows, as in decoding, that costs
    more than the product itself. So the weights are copied once into its own layout, where this
    build of torch has it.

    Args:
        modules: Linear layers of the same input.
        dtype: Of the product; accumulated in float32.
    """

    def __init__(self, *modules: nn.Linear, dtype: torch.dtype) -> None:
        weight = torch.cat([module.weight.detach() for module in modules]).to(dtype)
        self.sizes = [module.out_features for module in modules]
        self._dtype = dtype
        self._bias = _joint_bias(modules, dtype)
        self._packed = _can_pack(dtype)
        if self._packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        self._weight = weight

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply [rows, in] of any dtype; the result has the product's."""
        rows = rows.to(self._dtype)
        if self._packed:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(
                rows, self._weight, self._bias, "none", [], ""
            )
            return product
        return F.linear(rows, self._weight, self._bias)


def _joint_bias(modules: tuple[nn.Linear, ...], dtype: torch.dtype) -> Tensor | None:
    if all(module.bias is None for module in modules):
        return None
    parts = [
        torch.zeros(module.out_features) if module.bias is None else module.bias.detach()
        for module in modules
    ]
    return torch.cat(parts).to(dtype)


def _can_pack(dtype: torch.dtype) -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not (available and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
        return False
    supported: bool = dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return supported
