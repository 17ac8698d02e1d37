import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectory_strategies import make_call, sessions

from polar.errors import FidelityError
from polar.trajectory import ROOT, TokenTree


def path_tokens(tree, call_id):
    parts = [tree.segment(index).token_ids for index in tree.path(call_id)]
    return np.concatenate([np.empty(0, np.int32), *parts]).tolist()


def layout(tree):
    return [
        (segment.parent, segment.token_ids.tolist(), segment.call_id, segment.offset)
        for segment in map(tree.segment, range(len(tree)))
    ]


def of_session(call, number):
    parent = None if call.parent_id is None else f"{number}-{call.parent_id}"
    return dataclasses.replace(
        call, session_id=f"s{number}", id=f"{number}-{call.id}", parent_id=parent
    )


@given(sessions())
def test_the_path_of_a_call_is_its_prompt_and_what_it_sampled(calls):
    tree = TokenTree(calls)
    for call in calls:
        assert path_tokens(tree, call.id) == [*call.prompt_ids, *call.sampled_ids]


@given(sessions())
def test_every_sampled_token_is_in_one_segment_of_its_own_call(calls):
    tree = TokenTree(calls)
    for call in calls:
        own = [s for s in map(tree.segment, range(len(tree))) if s.call_id == call.id]
        own.sort(key=lambda segment: segment.offset)
        assert [t for segment in own for t in segment.token_ids.tolist()] == list(call.sampled_ids)


@given(sessions(), st.randoms(use_true_random=False))
def test_the_tree_does_not_depend_on_the_order_of_arrival(calls, random):
    shuffled = random.sample(calls, len(calls))
    grown = TokenTree()
    for call in shuffled:
        grown.add(call)
    assert layout(grown) == layout(TokenTree(calls)) == layout(TokenTree(shuffled))


@given(sessions())
def test_no_context_is_stored_twice_below_one_segment(calls):
    tree = TokenTree(calls)
    heads = [
        (segment.parent, int(segment.token_ids[0]))
        for segment in map(tree.segment, range(1, len(tree)))
        if segment.call_id is None
    ]
    assert len(heads) == len(set(heads))


def test_an_identical_prompt_sent_twice_is_two_branches_even_with_equal_replies():
    tree = TokenTree([make_call(0, [1, 2], [5, 6]), make_call(1, [1, 2], [5, 6])])
    assert tree.size == 2 + 2 + 2
    assert len(tree.leaves()) == 2
    assert tree.path("c0")[0] == tree.path("c1")[0]
    assert tree.end("c0") != tree.end("c1")


def test_a_continuation_hangs_below_the_sibling_that_it_names():
    first, second = make_call(0, [1, 2], [5, 6]), make_call(1, [1, 2], [5, 6])
    third = make_call(2, [1, 2, 5, 6, 7], [8], parent=1)
    tree = TokenTree([first, second, third])
    assert tree.end("c1") in tree.path("c2")
    assert tree.end("c0") not in tree.path("c2")


def test_a_named_parent_that_does_not_fit_is_not_believed():
    tree = TokenTree([make_call(0, [1, 2], [5]), make_call(1, [1, 3, 5, 7], [8], parent=0)])
    assert path_tokens(tree, "c1") == [1, 3, 5, 7, 8]
    assert tree.end("c0") not in tree.path("c1")


def test_a_rewritten_reply_forks_at_the_first_differing_token():
    tree = TokenTree([make_call(0, [1], [5, 6, 7]), make_call(1, [1, 5, 6, 9], [8])])
    kept, cut = tree.segment(tree.path("c0")[1]), tree.segment(tree.path("c0")[2])
    assert (kept.token_ids.tolist(), cut.token_ids.tolist()) == ([5, 6], [7])
    assert (kept.offset, cut.offset, kept.call_id, cut.call_id) == (0, 2, "c0", "c0")
    assert tree.path("c1")[1] == tree.path("c0")[1]


@given(sessions())
def test_prompts_that_lie_in_one_memory_make_the_same_tree(calls):
    """As a journal hands them out, and as no comparison of their tokens needs to read them."""
    longest = max((call.prompt_ids for call in calls), key=len).copy()

    def shared(call):
        size = len(call.prompt_ids)
        same = np.array_equal(longest[:size], call.prompt_ids)
        return dataclasses.replace(call, prompt_ids=longest[:size]) if same else call

    assert layout(TokenTree(map(shared, calls))) == layout(TokenTree(calls))


def test_prompts_of_one_address_and_other_strides_are_compared():
    memory = np.array([1, 2, 5, 3, 7, 7], np.int32)
    every_other = dataclasses.replace(make_call(0, [1, 5, 7], [3]), prompt_ids=memory[::2])
    all_of_them = make_call(1, [1, 2, 5, 3, 7], [9], parent=0)
    all_of_them = dataclasses.replace(all_of_them, prompt_ids=memory[:5])
    tree = TokenTree([every_other, all_of_them])
    assert path_tokens(tree, "c1") == [1, 2, 5, 3, 7, 9]


def test_a_linear_session_costs_its_final_length():
    calls, context = [], [1, 2, 3]
    for index in range(50):
        sampled = [10 + index, 11]
        calls.append(make_call(index, context, sampled, parent=index - 1 if index else None))
        context = [*context, *sampled, 4]
    tree = TokenTree(calls)
    assert tree.size == len(context) - 1
    assert tree.leaves() == ["c49"]
    assert tree.segment(ROOT).token_ids.tolist() == []


def test_a_call_that_appears_twice_is_an_error():
    with pytest.raises(FidelityError, match="twice"):
        TokenTree([make_call(0, [1], [2]), make_call(0, [1], [2])])


@given(sessions(), st.integers(0, 7))
def test_merging_trees_is_idempotent_and_gives_the_tree_of_all_calls(calls, cut):
    whole = TokenTree(calls)
    parts = [TokenTree(calls[:cut]), TokenTree(calls[cut:])]
    assert layout(TokenTree.merged(parts)) == layout(whole)
    assert layout(TokenTree.merged([*parts[::-1], whole])) == layout(whole)
    assert layout(TokenTree.merged([whole])) == layout(TokenTree.merged([whole, whole]))


@given(st.lists(sessions(max_calls=4), min_size=1, max_size=4))
def test_a_tree_of_a_group_has_the_calls_of_every_session_as_they_were(group):
    group = [[of_session(call, number) for call in calls] for number, calls in enumerate(group)]
    trees = [TokenTree(calls) for calls in group]
    merged = TokenTree.merged(trees)
    for call in (call for calls in group for call in calls):
        assert path_tokens(merged, call.id) == [*call.prompt_ids, *call.sampled_ids]
    assert max(tree.size for tree in trees) <= merged.size <= sum(tree.size for tree in trees)
    assert layout(TokenTree.merged(trees[::-1])) == layout(merged)


def test_the_prompt_of_a_task_is_stored_once_for_all_its_sessions():
    prompt = list(range(100))
    trees = [TokenTree([make_call(k, prompt, [200 + k], session_id=f"s{k}")]) for k in range(8)]
    group = TokenTree.merged(trees)
    assert sum(tree.size for tree in trees) == 8 * 101
    assert group.size == 108


def test_two_calls_of_one_id_are_not_merged():
    trees = [TokenTree([make_call(0, [1], [2])]), TokenTree([make_call(0, [1], [3])])]
    with pytest.raises(FidelityError, match=r"two calls have one id.*c0"):
        TokenTree.merged(trees)
