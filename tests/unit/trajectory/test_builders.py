import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectory_strategies import make_call, sessions, tokens

from polar.errors import FidelityError
from polar.trajectory import BuildPolicy, TokenTree, build, check
from polar.trajectory.builders import drop_reason

BUILDERS = ("prefix_merging", "per_request", "canonical")

policies = st.builds(
    BuildPolicy,
    kinds=st.frozensets(st.sampled_from(["main", "subagent", "auxiliary", "foreign"])),
    drop_abandoned=st.booleans(),
    drop_broken=st.booleans(),
    max_trace_tokens=st.none() | st.integers(1, 12),
    end_of_turn_id=st.none() | st.integers(0, 3),
)


def snapshot(built):
    return [
        (t.token_ids.tolist(), t.loss_mask.tolist(), t.logprobs.tolist(), t.call_ids)
        for t in built.traces
    ], built.report


def rows_of(trace, count):
    arrays = (trace.token_ids, trace.loss_mask, trace.logprobs, trace.weight_versions)
    return [array[:count].tolist() for array in arrays]


@given(sessions(), st.sampled_from(BUILDERS), policies)
def test_kept_and_dropped_make_up_what_was_sampled(calls, builder, policy):
    report = build(calls, builder=builder, policy=policy).report
    assert report.sampled == sum(len(call.sampled_ids) for call in calls)
    assert report.kept + sum(report.dropped.values()) == report.sampled
    assert report.discarded_tokens == sum(call.discarded_tokens for call in calls)


@given(sessions(), st.sampled_from(BUILDERS), policies)
def test_every_build_passes_the_independent_check(calls, builder, policy):
    built = build(calls, builder=builder, policy=policy)
    assert check(calls, built).kept == built.report.kept


@given(sessions(abandoned=False, kinds=("main",)), st.sampled_from(BUILDERS))
def test_every_sampled_token_is_trained_in_exactly_one_place(calls, builder):
    """Logprobs of the generated sessions are unique to call and position."""
    built = build(calls, builder=builder)
    trained = [lp for t in built.traces for lp in t.logprobs[t.loss_mask].tolist()]
    sampled = [lp for call in calls for lp in call.logprobs.tolist()]
    assert sorted(trained) == sorted(sampled)


@given(sessions())
def test_the_context_of_each_trained_call_is_its_recorded_prompt(calls):
    prompts = {call.id: call.prompt_ids.tolist() for call in calls}
    for trace in build(calls).traces:
        for call_id in trace.call_ids:
            prompt = prompts[call_id]
            assert trace.token_ids[: len(prompt)].tolist() == prompt


@given(sessions(), st.sampled_from(BUILDERS), st.randoms(use_true_random=False))
def test_a_build_depends_on_the_calls_alone(calls, builder, random):
    once = build(calls, builder=builder)
    again = build(random.sample(calls, len(calls)), builder=builder)
    assert snapshot(once) == snapshot(again)


@given(sessions())
def test_merging_never_costs_more_than_one_sequence_a_call(calls):
    report = build(calls).report
    assert report.tree_tokens <= report.trace_tokens <= report.per_request_tokens


def test_a_linear_session_is_one_trace():
    first = make_call(0, [1, 2], [5, 6])
    second = make_call(1, [1, 2, 5, 6, 3], [7], parent=0)
    (trace,) = build([first, second]).traces
    assert trace.token_ids.tolist() == [1, 2, 5, 6, 3, 7]
    assert trace.loss_mask.tolist() == [False, False, True, True, False, True]
    assert trace.weight_versions.tolist() == [-1, -1, 0, 0, -1, 1]
    assert trace.call_ids == ("c0", "c1")


@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=6), st.sampled_from(BUILDERS))
def test_a_session_that_only_appends_is_the_line_that_its_tree_is(turns, builder):
    """Every builder but `per_request` gives back the one line that the tree of it is."""
    calls, seen = [], [9]
    for index, (appended, sampled) in enumerate(turns):
        seen = [*seen, *appended, 8]
        calls.append(make_call(index, seen, [*sampled, 7], parent=index - 1 if index else None))
        seen = [*seen, *sampled, 7]
    tree = TokenTree(calls)
    built = build(tree.calls, builder=builder)
    assert built.traces[-1].token_ids.tolist() == seen
    assert tree.size == len(seen)
    if builder != "per_request":
        (trace,) = built.traces
        assert trace.call_ids == tuple(call.id for call in calls)
        assert built.report.trace_tokens == len(seen)


def test_a_retry_and_what_follows_it_are_both_kept():
    calls = [
        make_call(0, [1], [5], finish_reason="abandoned"),
        make_call(1, [1], [5]),
        make_call(2, [1, 5, 3], [7], parent=1),
    ]
    built = build(calls)
    (trace,) = built.traces
    assert trace.call_ids == ("c1", "c2")
    assert dict(built.report.dropped) == {"abandoned": 1}


@pytest.mark.parametrize("builder", BUILDERS)
def test_what_the_engine_broke_off_is_not_trained_whatever_version_it_is_recorded_under(builder):
    calls = [
        make_call(0, [1], [5, 6], finish_reason="error"),
        make_call(1, [1], [5]),
    ]
    built = build(calls, builder=builder)
    assert [trace.call_ids for trace in built.traces] == [("c1",)]
    assert dict(built.report.dropped) == {"error": 2}
    assert check(calls, built).kept == 1

    kept = build(calls, builder=builder, policy=BuildPolicy(drop_broken=False)).report
    assert (kept.kept, dict(kept.dropped)) == (3, {})


def test_a_shared_ancestor_is_trained_by_the_first_leaf_only():
    calls = [
        make_call(0, [1], [5]),
        make_call(1, [1, 5, 2], [6], parent=0),
        make_call(2, [1, 5, 3], [7], parent=0),
    ]
    first, second = build(calls).traces
    assert (first.call_ids, second.call_ids) == (("c0", "c1"), ("c2",))
    assert second.loss_mask.tolist() == [False, False, False, True]
    assert second.logprobs[1] == 0


def test_a_dropped_call_can_still_be_the_context_of_a_kept_one():
    calls = [make_call(0, [1], [5], kind="auxiliary"), make_call(1, [1, 5, 2], [6], parent=0)]
    built = build(calls)
    (trace,) = built.traces
    assert trace.loss_mask.tolist() == [False, False, False, True]
    assert dict(built.report.dropped) == {"kind_auxiliary": 1}


def test_a_trace_that_is_too_long_keeps_its_exact_causal_prefix():
    calls = [make_call(0, [1, 2], [5, 6]), make_call(1, [1, 2, 5, 6, 3, 3], [7, 8], parent=0)]
    built = build(calls, policy=BuildPolicy(max_trace_tokens=7))
    (trace,) = built.traces
    assert trace.token_ids.tolist() == [1, 2, 5, 6, 3, 3, 7]
    assert dict(built.report.dropped) == {"too_long": 1}
    (shorter,) = build(calls, policy=BuildPolicy(max_trace_tokens=6)).traces
    assert shorter.token_ids.tolist() == [1, 2, 5, 6]
    assert shorter.call_ids == ("c0",)


@given(sessions(), st.sampled_from(BUILDERS), st.integers(1, 16))
def test_a_limit_leaves_of_every_trace_its_causal_prefix_up_to_the_last_trained_token(
    calls, builder, limit
):
    whole = build(calls, builder=builder, policy=BuildPolicy(end_of_turn_id=1)).traces
    policy = BuildPolicy(end_of_turn_id=1, max_trace_tokens=limit)
    expected = []
    for trace in whole:
        trained = np.flatnonzero(trace.loss_mask[:limit])
        if len(trace.token_ids) <= limit:
            expected.append(rows_of(trace, len(trace.token_ids)))
        elif len(trained):
            expected.append(rows_of(trace, trained[-1] + 1))
    found = build(calls, builder=builder, policy=policy).traces
    assert [rows_of(trace, len(trace.token_ids)) for trace in found] == expected


def test_forks_are_counted_by_reason():
    calls = [make_call(0, [1], [5]), make_call(1, [1], [5], fork_reason="retry")]
    assert dict(build(calls).report.forks) == {"retry": 1}


def test_a_session_without_calls_has_no_traces():
    built = build([])
    assert built.traces == ()
    assert built.report.sampled == 0


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_logprob_that_is_not_a_number_names_its_call(builder):
    call = make_call(3, [1], [5, 6], logprobs=np.array([-1.0, np.nan], np.float32))
    with pytest.raises(FidelityError, match=r"token 1 is nan .*session s1, call c3"):
        build([call], builder=builder)


def test_the_least_sure_way_that_tokens_are_known_is_told_and_calls_of_text_alone_are_counted():
    known = make_call(0, [1], [5])
    recorded = make_call(1, [1], [6], capture="recorded")
    text = make_call(2, [], [], capture="text")
    reports = [build(calls).report for calls in ([known], [known, recorded], [recorded, text])]
    assert [(report.capture, report.text_calls) for report in reports] == [
        ("tokens", 0),
        ("recorded", 0),
        ("text", 1),
    ]
    assert (reports[2].sampled, reports[2].kept, dict(reports[2].dropped)) == (1, 1, {})


@pytest.mark.parametrize("kind", ["main", "auxiliary"])
def test_a_call_of_text_alone_is_not_trained_for_that_reason(kind):
    assert drop_reason(make_call(0, [], [], capture="text", kind=kind), BuildPolicy()) == (
        "text_only"
    )


def test_a_call_of_text_alone_that_has_tokens_is_an_error():
    with pytest.raises(FidelityError, match=r"only the text is known has tokens .*call c3"):
        build([make_call(3, [1], [5], capture="text")])


@pytest.mark.parametrize("field", ["logprobs", "weight_versions"])
def test_arrays_of_unequal_length_name_their_call(field):
    call = make_call(3, [1], [5, 6], **{field: np.zeros(1, np.float32)})
    with pytest.raises(FidelityError, match=r"2 sampled tokens have .*call c3"):
        build([call])
