"""Tree attention equals attention under the tree's mask, and refuses what it cannot honour."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from train_cases import branching_traces, make_model

from polar.errors import TrainingError
from polar.train.attention import tree_attention_forward
from polar.train.policy import Policy
from polar.train.tree_batch import build_tree
from polar.train.tree_context import tree_attention

LAYOUT = build_tree(branching_traces()).layout


def visible(layout, window=None):
    """bool [nodes, nodes], from the definition: ancestors and self, near enough."""
    depths, size = layout.depths, layout.depths.size
    mask = np.zeros((size, size), bool)
    for row in range(size):
        node, depth = row, depths[row]
        while True:
            mask[row, node] = window is None or depths[row] - depths[node] < window
            if depth == 0:
                break
            depth -= 1
            node = max(r for r in range(node) if depths[r] == depth)
    return torch.from_numpy(mask)


def some_inputs(dtype, heads=4, kv_heads=2):
    torch.manual_seed(1)
    shapes = [(1, heads, 8), (1, kv_heads, 8), (1, kv_heads, 8)]
    return [
        torch.randn(b, h, LAYOUT.depths.size, d, dtype=dtype, requires_grad=True)
        for b, h, d in shapes
    ]


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_equals_attention_under_the_mask(dtype, window):
    inputs, mask = some_inputs(dtype), visible(LAYOUT, window)
    reference = torch.nn.functional.scaled_dot_product_attention(
        *inputs, attn_mask=mask, enable_gqa=True, scale=0.3
    ).transpose(1, 2)
    weight = torch.randn_like(reference)
    expected = torch.autograd.grad((reference * weight).sum(), inputs)
    with tree_attention(LAYOUT):
        output, _ = tree_attention_forward(
            torch.nn.Module(), *inputs, None, scaling=0.3, sliding_window=window
        )
    found = torch.autograd.grad((output * weight).sum(), inputs)
    torch.testing.assert_close(output, reference)
    for gradient, other in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


def test_narrow_inputs_give_narrow_outputs_near_the_wide_ones():
    inputs = some_inputs(torch.bfloat16)
    with tree_attention(LAYOUT):
        narrow, _ = tree_attention_forward(torch.nn.Module(), *inputs, None)
        wide, _ = tree_attention_forward(torch.nn.Module(), *(x.float() for x in inputs), None)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), wide, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"dropout": 0.1}, "dropout"),
        ({"softcap": 30.0}, "softcap"),
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"attention_mask": torch.zeros(1)}, "attention mask"),
    ],
)
def test_what_cannot_be_honoured_is_refused(asked, name):
    arguments = {"attention_mask": None} | asked
    with tree_attention(LAYOUT), pytest.raises(TrainingError, match=name):
        tree_attention_forward(torch.nn.Module(), *some_inputs(torch.float32), **arguments)


def test_a_call_without_a_tree_is_an_error():
    with pytest.raises(TrainingError, match="outside a tree batch"):
        tree_attention_forward(torch.nn.Module(), *some_inputs(torch.float32), None)


def test_a_layer_that_does_not_ask_for_the_tree_is_noticed():
    model = make_model()
    model.set_attn_implementation("polar_tree")
    model.model.layers[1].self_attn.config = make_model().config
    with pytest.raises(TrainingError, match="1 of 3 layers"):
        Policy(model).logprobs(build_tree(branching_traces()))
