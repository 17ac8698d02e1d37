"""The join for engines that render the history of every call anew. The end of a turn is 7."""

import dataclasses

import pytest
from hypothesis import given
from trajectory_strategies import ids, make_call, sessions

from polar.errors import FidelityError
from polar.trajectory import BuildPolicy, build, check


def canonical(calls, **policy):
    built = build(calls, builder="canonical", policy=BuildPolicy(**policy))
    check(calls, built)
    return built


def test_replies_stay_as_sampled_where_the_server_rendered_them_otherwise():
    first = make_call(0, [1, 2], [5, 6, 7])
    second = make_call(1, [1, 2, 50, 7, 3], [8, 7])
    built = canonical([first, second])
    (trace,) = built.traces
    assert trace.token_ids.tolist() == [1, 2, 5, 6, 7, 3, 8, 7]
    assert trace.loss_mask.tolist() == [False, False, True, True, True, False, True, True]
    assert trace.call_ids == ("c0", "c1")
    assert (trace.divergences, built.report.divergences) == (1, 1)


def test_a_reply_that_did_not_end_its_turn_is_ended_as_the_server_did():
    first = make_call(0, [1, 2], [5, 6], finish_reason="length")
    second = make_call(1, [1, 2, 50, 7, 3], [8, 7])
    (trace,) = canonical([first, second]).traces
    assert trace.token_ids.tolist() == [1, 2, 5, 6, 7, 3, 8, 7]


def test_what_did_not_drift_is_no_divergence():
    first = make_call(0, [1, 2], [5, 7])
    second = make_call(1, [1, 2, 5, 7, 3], [8, 7])
    built = canonical([first, second])
    assert [trace.divergences for trace in built.traces] == [0]
    assert built.traces[0].token_ids.tolist() == [1, 2, 5, 7, 3, 8, 7]


def test_a_split_that_fails_begins_a_chain_and_drops_nothing():
    calls = [
        make_call(0, [1, 2], [5, 7]),
        make_call(1, [1, 2, 50, 3], [8, 7]),
        make_call(2, [1, 2, 50, 3, 8, 7, 4], [9, 7]),
    ]
    built = canonical(calls)
    assert [trace.call_ids for trace in built.traces] == [("c0",), ("c1", "c2")]
    assert built.report.kept == built.report.sampled == 6


def test_a_retry_is_a_chain_of_its_own_and_the_rest_goes_on_where_it_was_answered():
    calls = [
        make_call(0, [1], [5, 7]),
        make_call(1, [1], [6, 7]),
        make_call(2, [1, 6, 7, 2], [8, 7]),
    ]
    built = canonical(calls)
    assert [trace.call_ids for trace in built.traces] == [("c0",), ("c1", "c2")]
    assert built.report.divergences == 0


def test_without_an_end_of_turn_only_exact_continuations_are_joined():
    calls = [
        make_call(0, [1], [5], finish_reason="length"),
        make_call(1, [1, 5, 2], [6], finish_reason="length"),
        make_call(2, [1, 9, 2], [6], finish_reason="length"),
    ]
    assert [trace.call_ids for trace in canonical(calls).traces] == [("c0", "c1"), ("c2",)]


def test_the_end_of_turn_can_be_told():
    calls = [make_call(0, [1], [5, 4]), make_call(1, [1, 50, 7, 2], [6, 4])]
    assert len(canonical(calls).traces) == 2
    assert len(canonical(calls, end_of_turn_id=7).traces) == 1


def test_a_chain_that_is_too_long_counts_the_divergences_that_are_left():
    calls = [make_call(0, [1], [5, 7]), make_call(1, [1, 50, 7, 3, 3], [8, 7])]
    built = canonical(calls, max_trace_tokens=4)
    assert dict(built.report.dropped) == {"too_long": 2}
    assert built.report.divergences == 0


@given(sessions(abandoned=False, kinds=("main",)))
def test_a_chain_without_divergence_has_the_context_that_the_engine_saw(calls):
    by_id = {call.id: call for call in calls}
    for trace in canonical(calls).traces:
        if not trace.divergences:
            last = by_id[trace.call_ids[-1]]
            assert trace.token_ids.tolist() == [*last.prompt_ids, *last.sampled_ids]


def test_a_divergence_that_a_trace_hides_is_caught():
    calls = [make_call(0, [1], [5, 7]), make_call(1, [1, 50, 7, 3], [8, 7])]
    built = canonical(calls)
    (trace,) = built.traces
    hidden = dataclasses.replace(built, traces=(dataclasses.replace(trace, divergences=0),))
    with pytest.raises(FidelityError, match="differs from its prompt"):
        check(calls, hidden)
    more = dataclasses.replace(built, traces=(dataclasses.replace(trace, divergences=2),))
    with pytest.raises(FidelityError, match="it says 2"):
        check(calls, more)


def test_an_altered_token_of_a_divergent_trace_is_caught():
    calls = [make_call(0, [1], [5, 7]), make_call(1, [1, 50, 7, 3], [8, 7])]
    built = canonical(calls)
    (trace,) = built.traces
    altered = dataclasses.replace(trace, token_ids=ids([1, 5, 7, 3, 9, 7]))
    with pytest.raises(FidelityError, match="token of a sampled token was altered"):
        check(calls, dataclasses.replace(built, traces=(altered,)))
