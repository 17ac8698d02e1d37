"""Trees are cut into pieces that hold every row once, after what it descends from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from train_cases import branching_traces, make_model, make_trace

from polar.errors import TrainingError
from polar.train.attention import ATTENTION_NAME
from polar.train.layout import TreeLayout
from polar.train.pieces import cut_pieces
from polar.train.policy import Policy
from polar.train.tree_batch import build_tree


@st.composite
def layouts(draw):
    """Forests: each depth is at most one more than the one before it."""
    depths = [0]
    for _ in range(draw(st.integers(0, 40))):
        depths.append(
            draw(st.integers(0, depths[-1] + 1)) if draw(st.booleans()) else depths[-1] + 1
        )
    return TreeLayout.from_depths(np.array(depths, np.int32))


@given(layouts(), st.integers(1, 50))
def test_every_row_is_in_one_piece_and_no_segment_is_cut(layout, size):
    pieces = cut_pieces(layout, size)
    edges = [pieces[0].start, *(p.stop for p in pieces)]
    assert [p.start for p in pieces] == edges[:-1]
    assert (edges[0], edges[-1]) == (0, layout.depths.size)
    assert set(edges) <= {0, *(s.stop for s in layout.segments)}


@given(layouts(), st.integers(1, 50))
def test_a_piece_is_kept_as_long_as_rows_descend_from_it(layout, size):
    for piece in cut_pieces(layout, size):
        mine = [s for s in layout.segments if piece.start <= s.start < piece.stop]
        assert piece.until == max(s.subtree_stop for s in mine)
        assert piece.until >= piece.stop


@given(layouts(), st.integers(2, 50))
def test_only_a_long_segment_makes_a_piece_too_large(layout, size):
    longest = max(s.stop - s.start for s in layout.segments)
    for piece in cut_pieces(layout, size):
        assert piece.stop - piece.start <= max(size, size // 2 + longest)


def group(prompt, reply, sessions):
    return build_tree(
        [
            make_trace([1] * prompt + [2 + k] * reply, range(prompt, prompt + reply))
            for k in range(sessions)
        ]
    )


def test_a_group_is_cut_into_its_prompt_and_whole_replies():
    pieces = cut_pieces(group(90, 15, 8).layout, 50)
    assert [(p.start, p.stop) for p in pieces] == [(0, 90), (90, 135), (135, 180), (180, 210)]
    assert [p.until for p in pieces] == [210, 135, 180, 210]


class Held:
    """Counts the bytes that autograd holds for the backward pass."""

    def __init__(self):
        self.now = self.most = 0

    def pack(self, tensor):
        return _Saved(self, tensor)

    def __enter__(self):
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda s: s.tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)


class _Saved:
    def __init__(self, held, tensor):
        self.held, self.tensor = held, tensor
        held.now += tensor.nbytes
        held.most = max(held.most, held.now)

    def __del__(self):
        self.held.now -= self.tensor.nbytes


def most_held(run):
    with Held() as held:
        run()
    return held.most


def test_a_group_holds_about_as_much_as_its_longest_session():
    """The prompt, one piece of replies, and the prompt's keys and values once more."""
    model = make_model()
    model.set_attn_implementation(ATTENTION_NAME)
    policy = Policy(model, keep="everything", piece_tokens=30)

    def learn(batch):
        policy.learn(batch, lambda _, logprobs, __: logprobs.sum())

    one, few, many = (most_held(lambda n=n: learn(group(90, 15, n))) for n in (1, 4, 32))
    assert one < few <= many < 1.5 * one
    whole = most_held(lambda: policy.logprobs(group(90, 15, 32))[0].sum().backward())
    assert whole > 3 * many


def test_what_lies_beyond_the_limit_holds_its_inputs_only():
    model = make_model()
    model.set_attn_implementation(ATTENTION_NAME)

    def held(limit):
        policy = Policy(model, keep="everything", piece_tokens=30, checkpoint_above=limit)
        return most_held(lambda: policy.learn(group(90, 15, 8), lambda _, x, __: x.sum()))

    prompt_too, replies_only, nothing = held(0), held(90), held(120)
    assert 2 * prompt_too < replies_only < nothing


@pytest.mark.parametrize("size", [1, 4, 16])
def test_what_is_measured_in_pieces_is_that_of_the_whole_tree(size):
    model, batch = make_model(), build_tree(branching_traces())
    model.set_attn_implementation(ATTENTION_NAME)
    found = Policy(model, piece_tokens=size).measure(batch)
    for measured, expected in zip(found, Policy(model).logprobs(batch), strict=True):
        assert not measured.requires_grad
        torch.testing.assert_close(measured, expected.detach())


def test_a_loss_that_is_not_finite_is_an_error():
    model = make_model()
    model.set_attn_implementation(ATTENTION_NAME)
    with pytest.raises(TrainingError, match="the loss is nan"):
        Policy(model).learn(group(9, 3, 2), lambda _, logprobs, __: logprobs.sum() * float("nan"))


def test_a_loss_sees_whole_traces():
    """A trace's share comes at once, whatever pieces its samples are in."""
    model, batch = make_model(), build_tree(branching_traces())
    model.set_attn_implementation(ATTENTION_NAME)
    seen = []

    def loss_of(samples, logprobs, entropies):
        assert samples.size == logprobs.numel()
        seen.append(samples)
        return logprobs.sum()

    logprobs, entropies = Policy(model, piece_tokens=4).learn(batch, loss_of)
    expected, spread = Policy(model).logprobs(batch)
    torch.testing.assert_close(logprobs, expected.detach())
    torch.testing.assert_close(entropies, spread)
    assert sorted(np.concatenate(seen).tolist()) == list(range(batch.sample_rows.size))
    whole = [set(batch.sample_traces[samples].tolist()) for samples in seen]
    assert sum(map(len, whole)) == len(set().union(*whole))
