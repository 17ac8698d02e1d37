"""Sessions of scored calls, and advantages of calls by loops."""

from __future__ import annotations

import math
import statistics
from itertools import count

import numpy as np
from train_cases import VOCABULARY, make_group, make_trace

from polar.trajectory import build, credit
from polar.types import (
    Call,
    CallId,
    Completed,
    Grade,
    Message,
    Sampling,
    Session,
    SessionId,
    TaskId,
    Trajectory,
)

PROMPT = [9, 8, 7, 6]
_numbers = count()


def made(tokens, trained):
    """A trace that names a call without saying which tokens are of it."""
    trace = make_trace(tokens, trained)
    return type(trace)(
        trace.token_ids,
        trace.loss_mask,
        trace.logprobs,
        trace.weight_versions,
        (CallId("c0"),),
    )


def make_call(index: int, prompt: list[int], sampled: list[int]) -> Call:
    return Call(
        id=CallId(f"c{index}"),
        session_id=SessionId("s"),
        attempt=0,
        index=index,
        parent_id=None,
        prompt_ids=np.array(prompt, np.int32),
        sampled_ids=np.array(sampled, np.int32),
        logprobs=np.full(len(sampled), -4.5, np.float32),
        weight_versions=np.zeros(len(sampled), np.int32),
        messages=(),
        tools=(),
        sampling=Sampling(),
        reply=Message("assistant", ""),
        finish_reason="stop",
    )


def make_session(scores, *, reward=0.0, calls=None, tokens=1) -> Trajectory:
    """A line of calls; a score of None is none at all."""
    number = len(scores) if calls is None else calls
    prompt, made_calls = list(PROMPT), []
    for index in range(number):
        sampled = [10 + (index + k) % 50 for k in range(tokens)]
        made_calls.append(make_call(index, prompt, sampled))
        prompt = [*prompt, *sampled, 3]
    return credited(made_calls, dict(enumerate(scores)), reward)


def make_step_group(random, *, scores=True):
    """Sessions with forks anywhere, some calls without a score."""
    return make_group(*(_random_session(random, scores) for _ in range(random.integers(2, 6))))


def _random_session(random, scored) -> Trajectory:
    contexts, calls = [list(PROMPT)], []
    for index in range(int(random.integers(1, 7))):
        prompt = contexts[-1] if random.random() < 0.7 else contexts[random.integers(len(contexts))]
        prompt = [*prompt, *_some(random, 1)]
        sampled = _some(random, int(random.integers(1, 4)))
        calls.append(make_call(index, prompt, sampled))
        contexts.append([*prompt, *sampled])
    scores = {
        call.index: float(random.integers(-4, 5)) / 4
        for call in calls
        if scored and random.random() < 0.8
    }
    return credited(calls, scores, float(random.integers(0, 3)) / 2)


def _some(random, size):
    return random.integers(3, VOCABULARY, size).tolist()


def credited(calls, scores, reward) -> Trajectory:
    session = Session(SessionId(f"s{next(_numbers)}"), TaskId("t"), "g", 0, "key")
    given = {CallId(f"c{index}"): score for index, score in scores.items() if score is not None}
    outcome = Completed(Grade(reward, reward > 0), 0)
    trajectory = credit(session, build(calls), outcome, step_rewards=given)
    assert trajectory is not None
    return trajectory


def plain_step_advantages(groups, algorithm, discount):
    """One number a call, in order of arrival, by loops."""
    earned = [[_plain_returns(t, discount) for t in group.trajectories] for group in groups]
    every = [session for group in earned for session in group]
    centred = [[_less_the_mean(s, group) for s in group] for group in earned]
    match algorithm:
        case "grpo":
            return [[_over(s, _deviation(group)) for s in group] for group in centred]
        case "dr_grpo":
            return centred
        case "rloo":
            return [
                [_less_the_mean(s, [o for o in group if o is not s]) for s in group]
                for group in earned
            ]
        case "reinforce_pp":
            whole = [[_less_the_mean(s, every) for s in group] for group in earned]
        case "reinforce_pp_baseline":
            whole = centred
    spread = _deviation([s for group in whole for s in group])
    return [[_over(s, spread) for s in group] for group in whole]


def _plain_returns(trajectory, discount):
    pairs = []
    for trace in trajectory.traces:
        pairs += zip(trace.call_indices, trace.call_ids, strict=True)
    order = [call_id for _, call_id in sorted(pairs)]
    found = []
    for i in range(len(order)):
        total = trajectory.reward * discount ** (len(order) - 1 - i)
        for j in range(i, len(order)):
            total += trajectory.step_rewards.get(order[j], 0.0) * discount ** (j - i)
        found.append(total)
    return found


def _less_the_mean(session, others):
    return [
        value - statistics.fmean(other[min(i, len(other) - 1)] for other in others)
        for i, value in enumerate(session)
    ]


def _deviation(sessions):
    squares = [statistics.fmean(value**2 for value in session) for session in sessions]
    return math.sqrt(sum(squares) / (len(sessions) - 1)) + 1e-4


def _over(session, deviation):
    return [value / deviation for value in session]
