"""What layers keep between their forward and backward pass, and what they compute again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from polar.train.tree_context import TreeContext, current_tree, tree_attention

__all__ = ["Keep", "checkpoint_layers"]

Keep = Literal["everything", "products", "inputs"]
"""`everything` that autograd asks for; the `products` of matrices and of attention, from which the
rest (norms, activations, rotations) is quickly computed again; or only each layer's `inputs`."""

_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def checkpoint_layers(model: PreTrainedModel, keep: Keep) -> None:
    """Choose what layers keep for the backward pass.

    The backward pass runs after `tree_attention` was left, so the recomputation enters it again.
    """
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.gradient_checkpointing = layer.training = keep != "everything"
            layer._gradient_checkpointing_func = partial(
                checkpoint,
                use_reentrant=False,
                context_fn=partial(_contexts, products=keep == "products"),
            )


def _contexts(products: bool) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Contexts of a layer's forward pass and of its recomputation."""
    tree = current_tree()
    first: list[AbstractContextManager[Any]] = []
    second: list[AbstractContextManager[Any]] = []
    if products:
        forward, again = create_selective_checkpoint_contexts(  # type: ignore[no-untyped-call]
            _policy
        )
        first, second = [forward], [again]
    if tree is not None:
        kept: list[Any] | None = [] if products else None
        first.append(_keeping(tree, kept))
        second.append(tree_attention(replace(tree, kept=kept, replay=products)))
    return _all(first), _all(second)


def _policy(_: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if operation in _PRODUCTS:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def _keeping(tree: TreeContext, kept: list[Any] | None) -> Iterator[None]:
    """Let the tree's attention leave its outputs in `kept`."""
    before, tree.kept = tree.kept, kept
    try:
        yield
    finally:
        tree.kept = before


@contextmanager
def _all(contexts: list[AbstractContextManager[Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
