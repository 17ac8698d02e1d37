"""Trees hold every token once and every sample where it belongs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_cases import branching_traces, make_trace

from polar.errors import TrainingError
from polar.train.layout import TreeLayout
from polar.train.tree_batch import build_tree, plan_batches


@st.composite
def trace_lists(draw):
    """Traces over few tokens, so that they share prefixes, repeat and contain one another."""
    tokens = st.lists(st.integers(0, 2), min_size=1, max_size=9)
    traces = []
    for sequence in draw(st.lists(tokens, min_size=1, max_size=8)):
        positions = (
            st.sets(st.integers(1, len(sequence) - 1)) if len(sequence) > 1 else st.just(set())
        )
        traces.append(make_trace(sequence, sorted(draw(positions))))
    return traces


def paths_of(batch):
    """The tokens from the root to each node, by walking the segments alone."""
    paths = [()] * batch.token_ids.size
    for segment in batch.layout.segments:
        trunk = ()
        for other in batch.layout.segments:
            if other.stop <= segment.start < other.subtree_stop:
                trunk += tuple(batch.token_ids[other.start : other.stop])
        for row in range(segment.start, segment.stop):
            paths[row] = trunk + tuple(batch.token_ids[segment.start : row + 1])
    return paths


@given(trace_lists())
def test_every_prefix_is_one_node(traces):
    prefixes = {tuple(t.token_ids[: i + 1]) for t in traces for i in range(t.token_ids.size)}
    batch = build_tree(traces)
    paths = paths_of(batch)
    assert len(paths) == len(prefixes)
    assert set(paths) == prefixes
    assert [len(path) - 1 for path in paths] == batch.position_ids.tolist()


@given(trace_lists())
def test_every_sample_is_predicted_by_its_exact_context(traces):
    batch = build_tree(traces)
    paths = paths_of(batch)
    for row, token, trace, position in zip(
        batch.sample_rows,
        batch.sample_tokens,
        batch.sample_traces,
        batch.sample_positions,
        strict=True,
    ):
        ids = tuple(traces[trace].token_ids)
        assert paths[batch.logit_nodes[row]] == ids[:position]
        assert token == ids[position]


@given(trace_lists(), st.integers(3, 30), st.integers(3, 10))
def test_every_sample_is_in_one_batch_or_its_trace_is_dropped(traces, max_tokens, max_trace_tokens):
    batches, dropped = plan_batches(
        traces, max_tokens=max_tokens, max_trace_tokens=max_trace_tokens
    )
    samples = [
        (int(t), int(p))
        for batch in batches
        for t, p in zip(batch.sample_traces, batch.sample_positions, strict=True)
    ]
    expected = [
        (i, int(p))
        for i, trace in enumerate(traces)
        if i not in dropped
        for p in np.flatnonzero(trace.loss_mask)
    ]
    assert sorted(samples) == expected
    assert all(
        batch.token_ids.size <= max_tokens or batch.token_ids.size == batch.sequence_tokens
        for batch in batches
    )
    assert set(dropped) == {i for i, t in enumerate(traces) if t.token_ids.size > max_trace_tokens}


def test_a_trace_above_the_budget_is_a_batch_of_its_own():
    traces = [make_trace([1] * 4 + [k] * n, [4]) for k, n in ((2, 2), (3, 20), (4, 2))]
    batches, dropped = plan_batches(traces, max_tokens=8, max_trace_tokens=24)
    assert sorted(batch.token_ids.size for batch in batches) == [6, 6, 24]
    assert dropped == ()


@given(trace_lists())
def test_samples_are_in_the_order_of_their_rows(traces):
    batch = build_tree(traces)
    assert (np.diff(batch.sample_rows) >= 0).all()
    assert (np.diff(batch.logit_nodes) > 0).all()


@given(trace_lists())
def test_the_order_of_traces_does_not_change_the_tree(traces):
    forward, backward = build_tree(traces), build_tree(traces[::-1])
    assert forward.token_ids.tolist() == backward.token_ids.tolist()
    assert forward.position_ids.tolist() == backward.position_ids.tolist()


def test_a_tree_is_cut_where_the_least_is_computed_again():
    first, second = [1] * 10, [2] * 10
    traces = [make_trace(trunk + [k] * 3, [11]) for trunk in (first, second) for k in (3, 4, 5)]
    batches, _ = plan_batches(traces, max_tokens=19, max_trace_tokens=19)
    assert [batch.token_ids.size for batch in batches] == [19, 19]


def test_separate_sequences_are_counted_whole():
    traces = branching_traces()
    batch = build_tree(traces)
    assert batch.sequence_tokens == sum(t.token_ids.size for t in traces)
    assert batch.token_ids.size < batch.sequence_tokens


def test_a_trained_first_token_is_an_error():
    with pytest.raises(TrainingError, match="first token"):
        build_tree([make_trace([1, 2, 3], [0, 1])])


def test_a_trained_token_without_a_logprob_is_an_error():
    with pytest.raises(TrainingError, match="finite logprob"):
        build_tree([make_trace([1, 2, 3], [1, 2], logprob=float("nan"))])


def test_a_forest_has_a_segment_for_each_root():
    layout = TreeLayout.from_depths(np.array([0, 1, 2, 2, 0, 1], np.int32))
    spans = [(s.start, s.stop, s.subtree_stop) for s in layout.segments]
    assert spans == [(0, 2, 4), (2, 3, 3), (3, 4, 4), (4, 6, 6)]
