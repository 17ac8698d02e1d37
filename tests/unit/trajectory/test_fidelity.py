import dataclasses

import numpy as np
import pytest
from trajectory_strategies import make_call

from polar.errors import FidelityError
from polar.trajectory import Built, TapeRecord, build, check, check_tape
from polar.types import CallId


@pytest.fixture
def calls():
    return [
        make_call(0, [1, 2], [5, 6]),
        make_call(1, [1, 2, 5, 6, 3], [7, 8], parent=0),
        make_call(2, [1, 2], [5, 9]),
    ]


@pytest.fixture
def built(calls):
    return build(calls)


def mutated(built, number, **arrays):
    """Replace single entries of one trace: `field=(position, value)`."""
    trace = built.traces[number]
    changed = {}
    for field, (position, value) in arrays.items():
        array = getattr(trace, field).copy()
        array[position] = value
        changed[field] = array
    traces = list(built.traces)
    traces[number] = dataclasses.replace(trace, **changed)
    return Built(tuple(traces), built.report)


def test_a_true_build_passes_and_is_counted(calls, built):
    report = check(calls, built)
    assert (report.calls, report.traces, report.sampled, report.kept) == (3, 2, 6, 6)


def test_a_missing_trace_is_caught(calls, built):
    with pytest.raises(FidelityError, match=r"is missing.*session s1, call c2"):
        check(calls, Built(built.traces[:1], built.report))


def test_a_missing_token_at_the_end_is_caught(calls, built):
    trace = built.traces[0]
    cut = dataclasses.replace(
        trace,
        token_ids=trace.token_ids[:-1],
        loss_mask=trace.loss_mask[:-1],
        logprobs=trace.logprobs[:-1],
        weight_versions=trace.weight_versions[:-1],
    )
    with pytest.raises(FidelityError, match=r"is missing.*call c1, position 1"):
        check(calls, Built((cut, built.traces[1]), built.report))


def test_a_sampled_token_that_is_not_trained_is_caught(calls, built):
    with pytest.raises(FidelityError, match=r"loss mask .*call c0, position 3"):
        check(calls, mutated(built, 0, loss_mask=(3, False)))


def test_a_doubled_trace_is_caught(calls, built):
    with pytest.raises(FidelityError, match="trained twice"):
        check(calls, Built((*built.traces, built.traces[0]), built.report))


def test_a_shared_token_trained_in_a_second_trace_is_caught(calls, built):
    with pytest.raises(FidelityError, match=r"no call of the trace .*trace 1, position 1"):
        check(calls, mutated(built, 1, loss_mask=(1, True)))


@pytest.mark.parametrize("position", [2, 3, 5, 6])
def test_an_altered_sampled_id_is_caught(calls, built, position):
    with pytest.raises(FidelityError, match=r"sampled token was altered|was conditioned on"):
        check(calls, mutated(built, 0, token_ids=(position, 99)))


@pytest.mark.parametrize("position", [2, 3, 5, 6])
def test_an_altered_logprob_is_caught_to_the_last_bit(calls, built, position):
    value = np.nextafter(built.traces[0].logprobs[position], np.float32(0))
    with pytest.raises(FidelityError, match=rf"logprob .*position {position}"):
        check(calls, mutated(built, 0, logprobs=(position, value)))


def test_an_altered_weight_version_is_caught(calls, built):
    with pytest.raises(FidelityError, match=r"weight version .*call c1, position 6"):
        check(calls, mutated(built, 0, weight_versions=(6, 7)))


@pytest.mark.parametrize("position", [0, 1, 4])
def test_an_altered_context_token_is_caught(calls, built, position):
    with pytest.raises(FidelityError, match=rf"conditioned on .*position {position}"):
        check(calls, mutated(built, 0, token_ids=(position, 99)))


def test_a_logprob_on_a_context_token_is_caught(calls, built):
    with pytest.raises(FidelityError, match="trace 0, position 0"):
        check(calls, mutated(built, 0, logprobs=(0, -1.0)))


def test_a_call_that_no_one_made_is_caught(calls, built):
    with pytest.raises(FidelityError, match="unknown call"):
        check(calls[:2], built)


def test_a_reason_that_no_call_bears_out_is_caught(calls, built):
    dropped = dataclasses.replace(built.report, kept=4, dropped={"abandoned": 2})
    with pytest.raises(FidelityError, match="is missing"):
        check(calls, Built(built.traces[:1], dropped))


def test_a_wrong_count_of_dropped_tokens_is_caught(calls, built):
    calls = [dataclasses.replace(calls[0], finish_reason="abandoned"), *calls[1:]]
    built = build(calls)
    wrong = dataclasses.replace(built.report, dropped={"abandoned": 1})
    with pytest.raises(FidelityError, match="reported"):
        check(calls, Built(built.traces, wrong))


def tape_of(calls):
    return [TapeRecord.of(call.prompt_ids, call.sampled_ids, call.logprobs) for call in calls]


def test_a_tape_agrees_in_any_order_with_abandoned_and_repeated_calls(calls):
    again = dataclasses.replace(calls[2], id=CallId("c3"), index=3, finish_reason="abandoned")
    calls = [*calls, again]
    check_tape(calls, tape_of(calls[::-1]))


def test_requests_that_sampled_nothing_do_not_count(calls):
    empty = make_call(9, [1], [])
    check_tape([*calls, empty], tape_of(calls))
    check_tape(calls, tape_of([*calls, empty]))


def test_a_request_that_was_not_stored_is_caught(calls):
    with pytest.raises(FidelityError, match="1 requests on the engine's tape"):
        check_tape(calls[:2], tape_of(calls))


def test_a_request_that_a_killed_process_left_may_be_in_no_call(calls):
    *others, last = tape_of(calls)
    left = dataclasses.replace(last, may_be_lost=True)
    assert check_tape(calls[:2], [*others, left]) == 1
    assert check_tape(calls, [*others, left]) == 0
    with pytest.raises(FidelityError, match="1 requests on the engine's tape"):
        check_tape(calls[:2], [*others, left, last])


def test_a_call_stored_twice_is_caught(calls):
    with pytest.raises(FidelityError, match="no request with this prompt and reply"):
        check_tape([*calls, dataclasses.replace(calls[0], id=CallId("x"))], tape_of(calls))


@pytest.mark.parametrize("field", ["prompt_ids", "sampled_ids", "logprobs"])
def test_a_call_that_differs_from_the_tape_is_caught(calls, field):
    array = getattr(calls[0], field).copy()
    array[-1] += 1
    changed = dataclasses.replace(calls[0], **{field: array})
    with pytest.raises(FidelityError, match=r"no request .*call c0"):
        check_tape([changed, *calls[1:]], tape_of(calls))
