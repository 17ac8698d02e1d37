"""Which kernel computes tree attention on this machine, found out by trying."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from polar.train.attention import tree_attention_forward
from polar.train.flex import SMALLEST_HEAD
from polar.train.layout import TreeLayout
from polar.train.tree_context import Kernel, TreeContext, tree_attention

__all__ = ["choose_kernel", "flex_obstacle"]


def choose_kernel(model: PreTrainedModel) -> tuple[Kernel, str | None]:
    """Choose the fastest kernel that works where the model is.

    Returns:
        The kernel, and why it is not the one that is meant for the device.
    """
    if model.device.type != "cuda":
        return "blocks", None
    config = model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None)
    obstacle = flex_obstacle(model.device, head_dim or _head_dim(config))
    return ("flex", None) if obstacle is None else ("blocks", obstacle)


@cache
def flex_obstacle(device: torch.device, head_dim: int) -> str | None:
    """Say what keeps FlexAttention from being used; nothing if it works."""
    if device.type != "cuda":
        return "FlexAttention has no backward pass but on a GPU"
    if head_dim < SMALLEST_HEAD:
        return f"FlexAttention needs heads of at least {SMALLEST_HEAD}, these have {head_dim}"
    try:
        found, expected = (_attempt(kernel, device, head_dim) for kernel in ("flex", "blocks"))
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        return f"FlexAttention fails here ({type(error).__name__}: {reason})"
    for value, reference in zip(found, expected, strict=True):
        if (value - reference).norm() > 1e-3 * reference.norm():
            return "FlexAttention gives other results than plain products here"
    return None


def _head_dim(config: PreTrainedConfig) -> int:
    return int(config.hidden_size) // int(getattr(config, "num_attention_heads", 1))


def _attempt(kernel: Kernel, device: torch.device, head_dim: int) -> list[Tensor]:
    """Output and gradients of a small tree."""
    depths = np.concatenate([np.arange(100), np.arange(60, 160), np.arange(30, 90)])
    tree = TreeContext(TreeLayout.from_depths(depths.astype(np.int32)), kernel=kernel)
    random = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, depths.size, head_dim, generator=random).to(device).requires_grad_()
        for heads in (4, 2, 2)
    )
    with tree_attention(tree):
        output, _ = tree_attention_forward(nn.Module(), query, key, value, None)
    return [output.detach(), *torch.autograd.grad(output.square().sum(), (query, key, value))]
