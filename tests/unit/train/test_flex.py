"""FlexAttention sees what the tree shows, and is used only where it works."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_attention import visible
from torch.nn.attention.flex_attention import create_mask
from train_cases import branching_traces, make_model

from polar.train.attention import ATTENTION_NAME, tree_attention_forward
from polar.train.flex import visible_pairs
from polar.train.kernels import choose_kernel, flex_obstacle
from polar.train.pieces import cut_pieces
from polar.train.policy import Policy
from polar.train.tree_batch import build_tree
from polar.train.tree_context import TreeContext, tree_attention

LAYOUT = build_tree(branching_traces()).layout
WINDOWS = [None, 1, 4, 100]


def dense(tree, window):
    """bool [rows, keys], from the function that FlexAttention is given."""
    first, stop = tree.span
    keys = sum(b - a for a, b in tree.key_rows())
    pairs = visible_pairs(tree, window, torch.device("cpu"))
    return create_mask(pairs, 1, 1, stop - first, keys, device="cpu")[0, 0]


@pytest.mark.parametrize("window", WINDOWS)
def test_a_tree_shows_each_row_its_ancestors(window):
    assert torch.equal(dense(TreeContext(LAYOUT), window), visible(LAYOUT, window))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("size", [1, 8, 20])
def test_a_piece_shows_each_row_its_ancestors_in_earlier_pieces(window, size):
    whole, open_pieces, shown = visible(LAYOUT, window), [], 0
    for piece in cut_pieces(LAYOUT, size):
        open_pieces = [p for p in open_pieces if p.piece.until > piece.start]
        tree = TreeContext(LAYOUT, piece, past=open_pieces)
        rows = np.concatenate([np.arange(*span) for span in tree.key_rows()])
        found = dense(tree, window)
        assert torch.equal(found, whole[piece.start : piece.stop, rows])
        shown += int(found.sum())
        open_pieces = [*open_pieces, tree]
    assert shown == int(whole.sum())  # nothing that is visible lies in a piece that was let go


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", WINDOWS)
def test_flex_attention_gives_what_dense_blocks_give(window):
    torch.manual_seed(1)
    size = LAYOUT.depths.size
    inputs = [torch.randn(1, heads, size, 16) for heads in (4, 2, 2)]
    outputs = []
    for kernel in ("flex", "blocks"):
        with tree_attention(TreeContext(LAYOUT, kernel=kernel)):
            output, _ = tree_attention_forward(
                torch.nn.Module(), *inputs, None, scaling=0.3, sliding_window=window
            )
        outputs.append(output)
    torch.testing.assert_close(*outputs)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_a_model_under_flex_attention_gives_the_same_logprobs(family):
    model, batch = make_model(family).cpu(), build_tree(branching_traces())
    model.set_attn_implementation(ATTENTION_NAME)
    with torch.no_grad():
        found, expected = (
            Policy(model, kernel=kernel).logprobs(batch)[0] for kernel in ("flex", "blocks")
        )
    torch.testing.assert_close(found, expected)


def test_without_a_gpu_blocks_are_computed_and_nothing_is_amiss():
    assert choose_kernel(make_model().cpu()) == ("blocks", None)
    assert "but on a GPU" in flex_obstacle(torch.device("cpu"), 64)
