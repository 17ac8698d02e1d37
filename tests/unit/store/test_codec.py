"""Calls as deltas: what is read is what was stored, and costs what the longest prompt costs."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.store.codec import Context, decode_calls, encode_call
from polar.store.growing import GrowingIds
from polar.store.outcomes import decode_outcome
from polar.types import Call, CallId, Completed, Grade, Message, Sampling, SessionId

tokens = st.lists(st.integers(0, 3), max_size=4)


def make_call(index, prompt, sampled) -> Call:
    return Call(
        id=CallId(f"c{index}"),
        session_id=SessionId("s"),
        attempt=0,
        index=index,
        parent_id=None,
        prompt_ids=np.array(prompt, np.int32),
        sampled_ids=np.array(sampled, np.int32),
        logprobs=np.zeros(len(sampled), np.float32),
        weight_versions=np.zeros(len(sampled), np.int32),
        messages=(),
        tools=(),
        sampling=Sampling(),
        reply=Message("assistant", ""),
        finish_reason="stop",
    )


def arrays(calls):
    return [(call.prompt_ids.tolist(), call.sampled_ids.tolist()) for call in calls]


@st.composite
def stored(draw):
    """Calls with their rows: each goes on from an earlier one, or from a part of it."""
    calls, rows = [], []
    for index in range(draw(st.integers(1, 8))):
        base = draw(st.none() | st.sampled_from(calls)) if calls else None
        context = [] if base is None else [*base.prompt_ids, *base.sampled_ids]
        kept = draw(st.sampled_from([len(context), draw(st.integers(0, len(context)))]))
        call = make_call(index, [*context[:kept], *draw(tokens)], draw(tokens))
        calls.append(call)
        rows.append(encode_call(call, None if base is None else Context.after(base)))
    return calls, rows


@settings(deadline=None)
@given(stored())
def test_calls_that_go_on_from_any_part_of_others_are_read_as_they_were_stored(written):
    calls, rows = written
    assert arrays(decode_calls(rows)) == arrays(calls)


def test_the_prompts_of_a_conversation_that_was_read_take_the_memory_of_the_last_few():
    calls, rows, context = [], [], list(range(50))
    for index in range(300):
        calls.append(make_call(index, context, [index] * 30))
        base = Context.after(calls[-2]) if index else None
        rows.append(encode_call(calls[-1], base))
        context = [*context, *[index] * 30, 1, 2]
    read = decode_calls(rows)
    bases = {id(call.prompt_ids.base): call.prompt_ids.base for call in read}
    assert sum(base.nbytes for base in bases.values()) <= 4 * 4 * len(context)
    assert arrays(read) == arrays(calls)


def test_a_prompt_that_was_read_cannot_be_written_to():
    (call,) = decode_calls([encode_call(make_call(0, [1, 2], [3]), None)])
    assert not call.prompt_ids.flags.writeable
    assert not call.sampled_ids.flags.writeable


@given(st.lists(st.lists(st.integers(0, 9), max_size=600), max_size=8))
def test_what_was_handed_out_stays_while_the_array_grows(parts):
    ids, seen, views = GrowingIds(np.empty(0, np.int32)), [], []
    for part in parts:
        ids.append(np.array(part, np.int32))
        seen = [*seen, *part]
        views.append((ids.view(0, len(ids)), list(seen)))
    assert all(view.tolist() == expected for view, expected in views)


def test_an_outcome_that_an_earlier_release_stored_was_not_cut_off():
    stored = '{"kind":"completed","grade":{"reward":1.0,"passed":true,"details":{}},"exit_code":0}'
    assert decode_outcome(stored) == Completed(Grade(1.0, passed=True), 0)
