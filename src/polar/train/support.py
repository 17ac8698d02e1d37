"""Whether a model can be computed along trees, found out by trying."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polar.errors import TrainingError
from polar.train.layout import TreeLayout
from polar.train.tree_context import TreeContext, tree_attention

__all__ = ["decoder_layers", "last_hidden", "tree_obstacle"]

_TRUNK, _BRANCH = 4, 6  # a branch is longer than the convolutions of recurrent layers reach
# A random model's state may leak little. Doubt is resolved against the tree: that costs time only.
_TOLERANCE, _NARROW_TOLERANCE = 1e-5, 1e-4


def decoder_layers(model: PreTrainedModel, *, fix: str) -> nn.ModuleList:
    """Find the model's layers.

    Raises:
        TrainingError: They are nowhere in a list of their number.
    """
    count = model.config.get_text_config().num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise TrainingError("the model's layers were not found", fix=fix)


def last_hidden(model: PreTrainedModel, tokens: Tensor, tree: TreeContext) -> Tensor:
    """Compute the last hidden states [nodes, hidden_size] of a tree or a piece of it.

    Args:
        model: Its attention implementation is `polar_tree`.
        tokens: int64 [nodes].
        tree: Which rows of the tree the tokens are.

    Raises:
        TrainingError: The model mixes tokens by other means than standard attention.
    """
    start, stop = tree.span
    positions = torch.from_numpy(tree.layout.depths[start:stop]).long().to(tokens.device)
    with tree_attention(tree):
        hidden: Tensor = model.base_model(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False
        ).last_hidden_state[0]
    layers = model.config.get_text_config().num_hidden_layers
    if tree.layers_seen != layers:
        raise TrainingError(
            f"{layers - tree.layers_seen} of {layers} layers do not use standard attention",
            fix="Train it as separate sequences.",
        )
    return hidden


@torch.no_grad()
def tree_obstacle(model: PreTrainedModel) -> str | None:
    """Say what keeps a model from being computed along trees; nothing if it can be.

    Two branches are computed twice, with other tokens in the first: the second must not notice.

    Args:
        model: Its attention implementation is `polar_tree`.
    """
    branch = np.arange(_TRUNK, _TRUNK + _BRANCH)
    depths = np.concatenate([np.arange(_TRUNK), branch, branch]).astype(np.int32)
    layout = TreeLayout.from_depths(depths)
    tokens = torch.arange(depths.size, device=model.device)
    other = tokens.clone()
    other[_TRUNK : _TRUNK + _BRANCH] = tokens[:_BRANCH].flip(0)
    size = model.get_input_embeddings().weight.shape[0]
    try:
        first, second = (
            last_hidden(model, t % size, TreeContext(layout))[-_BRANCH:].float()
            for t in (tokens, other)
        )
    except TrainingError as error:
        return error.what
    except TypeError as error:  # the model takes no position ids, for one
        return f"it cannot be given a tree ({error})"
    allowed = _NARROW_TOLERANCE if model.dtype.itemsize < torch.float32.itemsize else _TOLERANCE
    if (first - second).norm() > allowed * first.norm():
        return "its layers carry state from one branch into the next"
    return None
