import dataclasses
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectory_strategies import make_call, sessions

from polar.errors import ConfigError, FidelityError
from polar.trajectory import BuildPolicy, build, calls_in_order, credit, returns, reward_of
from polar.types import CallId, Cancelled, Completed, Failed, Grade, Session, TimedOut

SESSION = Session("s1", "t1", "g1", 0, "key")
PASSED = Completed(Grade(1.0, True), exit_code=0)
LINE = (
    make_call(0, [1], [5]),
    make_call(1, [1, 5, 2], [6], parent=0),
    make_call(2, [1, 5, 2, 6, 2], [7], parent=1),
)


def credited(calls, scores, **policy):
    return credit(SESSION, build(calls, **policy), PASSED, step_rewards=scores)


def earned(calls, scores, **how):
    return dict(returns(credited(calls, scores), **how))


@pytest.mark.parametrize(
    ("outcome", "reward"),
    [
        (Completed(Grade(0.5, False), 0), 0.5),
        (TimedOut("running", Grade(1.0, True)), 1.0),
        (TimedOut("running"), None),
        (Failed("preparing", "no image"), None),
        (Cancelled("asked"), None),
    ],
)
def test_only_a_grade_is_a_reward(outcome, reward):
    trajectory = credit(SESSION, build([make_call(0, [1], [2])]), outcome)
    assert reward_of(outcome) == reward
    assert (trajectory.reward if trajectory else None) == reward


def test_a_call_earns_its_score_and_what_came_after_it():
    assert earned(LINE, {"c0": 0.5, "c2": -2.0}) == {"c0": -0.5, "c1": -1.0, "c2": -1.0}


def test_later_rewards_count_less_by_the_discount():
    assert earned(LINE, {"c1": 4.0}, discount=0.5) == {"c0": 2.25, "c1": 4.5, "c2": 1.0}


def test_without_scores_the_outcome_is_everyones():
    assert earned(LINE, {}) == {"c0": 1.0, "c1": 1.0, "c2": 1.0}


def test_another_end_can_be_given_than_the_sessions_reward():
    assert earned(LINE, {"c1": 4.0}, reward=0.0) == {"c0": 4.0, "c1": 4.0, "c2": 0.0}


def test_a_call_shares_in_what_came_after_it_in_other_lines():
    rewritten = [*LINE, make_call(3, [3], [8]), make_call(4, [3, 8, 2], [9], parent=3)]
    assert len(credited(rewritten, {}).traces) == 2
    found = earned(rewritten, {"c1": 4.0, "c4": 8.0})
    assert found == {"c0": 13.0, "c1": 13.0, "c2": 9.0, "c3": 9.0, "c4": 9.0}


def test_a_score_of_a_call_that_trains_nowhere_has_no_effect():
    calls = [*LINE, make_call(3, [3], [8], kind="auxiliary")]
    assert dict(credited(calls, {"c3": 9.0, "c2": 0.0}).step_rewards) == {"c2": 0.0}


def test_a_score_that_is_not_a_number_names_its_call():
    with pytest.raises(FidelityError, match=r"nan.*call c1"):
        credited(LINE, {"c1": float("nan")})


@pytest.mark.parametrize("discount", [-0.1, 1.1, float("nan")])
def test_what_is_no_discount_is_refused(discount):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        returns(credited(LINE, {}), discount=discount)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"call_tokens": ()}, "which of its tokens"),
        ({"call_ids": (), "call_tokens": (), "call_indices": ()}, "of 3 .* tokens 0 are given"),
        ({"call_tokens": (1, 2, 3)}, "of 3 .* tokens 6 are given"),
        ({"call_ids": (CallId("c0"),) * 3}, "the call c0 .* twice"),
    ],
    ids=["no numbers", "no calls", "other numbers", "a call twice"],
)
def test_traces_that_do_not_tell_their_calls_apart_have_no_returns(said, why):
    trajectory = credited(LINE, {})
    (trace,) = trajectory.traces
    vague = dataclasses.replace(trajectory, traces=(dataclasses.replace(trace, **said),))
    with pytest.raises(FidelityError, match=why) as raised:
        returns(vague)
    assert (raised.value.where, bool(raised.value.fix)) == (f"session {vague.session_id}", True)


@given(sessions(), st.sampled_from(["prefix_merging", "per_request", "canonical"]))
def test_every_trained_token_is_of_the_call_that_its_trace_says(calls, builder):
    built = build(calls, builder=builder)
    by_id = {call.id: call for call in calls}
    for trace in built.traces:
        sampled = trace.token_ids[trace.loss_mask].tolist()
        for call_id, tokens, index in zip(
            trace.call_ids, trace.call_tokens, trace.call_indices, strict=True
        ):
            assert sampled[:tokens] == by_id[call_id].sampled_ids.tolist()
            assert index == by_id[call_id].index
            sampled = sampled[tokens:]
        assert sampled == []


@given(sessions(), st.integers(1, 12))
def test_a_cut_trace_says_how_much_is_left_of_its_last_call(calls, limit):
    built = build(calls, policy=BuildPolicy(max_trace_tokens=limit))
    for trace in built.traces:
        assert sum(trace.call_tokens) == trace.loss_mask.sum()
        assert min(trace.call_tokens) > 0


@given(sessions(), st.randoms(use_true_random=False), st.floats(0, 1))
def test_returns_are_those_of_a_loop_over_all_later_calls(calls, random, discount):
    scores = {call.id: random.uniform(-2, 2) for call in calls if random.random() < 0.7}
    trajectory = credited(calls, MappingProxyType(scores))
    order = calls_in_order(trajectory)
    assert list(order) == [c.id for c in sorted(calls, key=lambda c: c.index) if c.id in order]
    found = returns(trajectory, discount=discount)
    for i, call_id in enumerate(order):
        later = [scores.get(c, 0.0) * discount**k for k, c in enumerate(order[i:])]
        end = discount ** (len(order) - 1 - i)
        assert found[call_id] == pytest.approx(sum(later) + end, abs=1e-9)
