import pytest
from trajectory_strategies import make_call

from polar.errors import ConfigError, FidelityError
from polar.trajectory import CreditPolicy, build, credit, reward_of
from polar.types import Cancelled, Completed, Failed, Grade, Session, TimedOut

SESSION = Session("s1", "t1", "g1", 0, "key")
PASSED = Completed(Grade(1.0, True), exit_code=0)
LINE = (
    make_call(0, [1], [5]),
    make_call(1, [1, 5, 2], [6], parent=0),
    make_call(2, [1, 5, 2, 6, 2], [7], parent=1),
)


def rewards(calls, scores, **policy):
    policy = CreditPolicy(by="steps", **policy)
    return dict(
        credit(SESSION, build(calls), PASSED, policy=policy, step_rewards=scores).call_rewards
    )


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
    session = Session("s1", "t1", "g1", 0, "key")
    trajectory = credit(session, build([make_call(0, [1], [2])]), outcome)
    assert reward_of(outcome) == reward
    assert (trajectory.reward if trajectory else None) == reward


def test_without_a_policy_every_call_has_the_sessions_reward():
    trajectory = credit(SESSION, build(LINE), PASSED)
    assert trajectory.reward == 1.0
    assert dict(trajectory.call_rewards) == {}


def test_a_call_earns_its_score_and_what_came_after_it():
    assert rewards(LINE, {"c0": 0.5, "c2": -2.0}) == {"c0": -0.5, "c1": -1.0, "c2": -1.0}


def test_later_rewards_count_less_by_the_discount():
    assert rewards(LINE, {"c1": 4.0}, discount=0.5) == {"c0": 2.25, "c1": 4.5, "c2": 1.0}


def test_without_a_discount_of_later_rewards_the_outcome_is_everyones():
    assert rewards(LINE, {}) == {"c0": 1.0, "c1": 1.0, "c2": 1.0}


def test_a_line_of_its_own_shares_in_the_outcome_and_not_in_the_scores_of_others():
    calls = [*LINE, make_call(3, [3], [8], kind="subagent")]
    assert rewards(calls, {"c0": 9.0})["c3"] == 1.0


def test_scores_that_the_policy_would_ignore_are_refused():
    with pytest.raises(ConfigError, match="credit by outcome alone"):
        credit(SESSION, build(LINE), PASSED, step_rewards={"c0": 1.0})


def test_a_score_that_is_not_a_number_names_its_call():
    with pytest.raises(FidelityError, match=r"nan.*call c1"):
        rewards(LINE, {"c1": float("nan")})


@pytest.mark.parametrize("discount", [-0.1, 1.1, float("nan")])
def test_what_is_no_discount_is_refused(discount):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        CreditPolicy(by="steps", discount=discount)
