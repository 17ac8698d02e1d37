"""Faults that users of other trainers reported, on masks, logprobs, loss and merging: not here."""

from __future__ import annotations

import asyncio
import dataclasses
import math

import numpy as np
import pytest
from loop_cases import Bench
from test_trainer import PROMPT, group_for, make_trainer, parameters, same, sampled
from tiny_models import prompt_of, tiny_model
from train_cases import branching_traces, make_group, make_model, make_trace, make_trajectory

from polar.engines import SampleRequest
from polar.engines.embedded import EmbeddedEngine
from polar.engines.settings import EmbeddedSettings
from polar.errors import FidelityError, TrainingError
from polar.train import Trainer, TrainSettings
from polar.train.lessons import credited_groups, group_lessons
from polar.train.staleness import within_bound
from polar.train.standing import is_truncated
from polar.trajectory import BuildPolicy, build
from polar.types import (
    Call,
    CallId,
    Completed,
    Failed,
    Grade,
    Message,
    Sampling,
    SessionId,
    TimedOut,
    Trace,
)

TEMPERATURE = 0.6


async def replies(model, count: int) -> list[Trace]:
    """Sample from the real engine at a temperature, and record what it says."""
    engine = await asyncio.to_thread(EmbeddedEngine, model, EmbeddedSettings(max_concurrency=4))
    try:
        return [await reply(engine, prompt_of(6, seed=i), i) for i in range(count)]
    finally:
        await engine.aclose()


async def reply(engine, prompt, seed) -> Trace:
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=12, seed=seed)
    chunks = [c async for c in engine.sample(SampleRequest(tuple(prompt), sampling))]
    tokens = [t for c in chunks for t in c.token_ids]
    trace = make_trace([*prompt, *tokens], range(len(prompt), len(prompt) + len(tokens)))
    logprobs = np.zeros(trace.token_ids.size, np.float32)
    logprobs[len(prompt) :] = [x for c in chunks for x in c.logprobs]
    return dataclasses.replace(trace, logprobs=logprobs)


@pytest.mark.parametrize("recompute", [True, False])
async def test_logprobs_sampled_at_a_temperature_give_a_ratio_of_one(recompute):
    model = tiny_model()
    traces = await replies(model, 4)
    rewards = (1.0, 0.0, 0.0, 1.0)
    group = make_group(
        *(make_trajectory(t, reward=r) for t, r in zip(traces, rewards, strict=True))
    )
    settings = TrainSettings(temperature=TEMPERATURE, recompute=recompute)
    metrics = Trainer(model, settings).step([group])
    assert metrics.trained_tokens == 48
    assert metrics.logprob_gap_max < 1e-3
    assert metrics.ratio_max == pytest.approx(1.0, abs=1e-3)
    assert metrics.engine_weight_mean == pytest.approx(1.0, abs=1e-3)


async def test_the_temperature_divides_logits_and_not_logprobs():
    model = tiny_model()
    (trace,) = await replies(model, 1)
    trainer = Trainer(model, TrainSettings(temperature=TEMPERATURE))
    found = trainer.logprobs([trace])[0][trace.loss_mask]
    raw = Trainer(tiny_model(), TrainSettings()).logprobs([trace])[0][trace.loss_mask]
    np.testing.assert_allclose(found, trace.logprobs[trace.loss_mask], atol=1e-3)
    assert np.abs(raw / TEMPERATURE - found).max() > 0.1


@pytest.mark.parametrize(
    ("logprobs", "what"),
    [
        (np.full(6, np.nan, np.float32), "without a finite logprob"),
        (np.zeros(0, np.float32), "arrays of"),
        (np.zeros(6, np.float32), "were not recorded"),
    ],
    ids=["nan", "none", "zeros"],
)
def test_logprobs_that_were_discarded_are_an_error_that_says_so(logprobs, what):
    trainer = make_trainer()
    before = parameters(trainer.model)
    trace = dataclasses.replace(make_trace([*PROMPT, 11, 12], [4, 5]), logprobs=logprobs)
    if not logprobs.size:
        with pytest.raises(TrainingError, match=what):
            trainer.supervised([make_trajectory(trace)], epochs=1, batch_sessions=1, lr=1e-3)
    else:
        group = make_group(make_trajectory(trace, reward=1.0), make_trajectory(trace))
        with pytest.raises(TrainingError, match=what):
            trainer.step([group])
    assert same(parameters(trainer.model), before)


def test_a_call_whose_logprobs_were_discarded_is_no_trace():
    with pytest.raises(FidelityError, match="2 sampled tokens have 0 logprobs"):
        build([call(0, [1, 2], [3, 4], logprobs=np.zeros(0, np.float32))])


def test_masks_that_are_all_zero_are_an_error():
    traces = [make_trace([*PROMPT, 11], []), make_trace([*PROMPT, 12], [])]
    group = make_group(*(make_trajectory(t, reward=r) for t, r in zip(traces, (1, 0), strict=True)))
    with pytest.raises(TrainingError, match="no trained token"):
        make_trainer().step([group])


def call(index: int, prompt, tokens, **fields) -> Call:
    count = len(tokens)
    return Call(
        **{
            "id": CallId(f"c{index}"),
            "session_id": SessionId("s"),
            "attempt": 0,
            "index": index,
            "parent_id": None,
            "prompt_ids": np.array(prompt, np.int32),
            "sampled_ids": np.array(tokens, np.int32),
            "logprobs": np.full(count, -0.5 - index, np.float32),
            "weight_versions": np.zeros(count, np.int32),
            "messages": (),
            "tools": (),
            "sampling": Sampling(),
            "reply": Message("assistant", ""),
            "finish_reason": "stop",
        }
        | fields
    )


@pytest.mark.parametrize("builder", ["per_request", "prefix_merging"])
def test_every_step_of_a_session_has_its_own_mask(builder):
    calls = [
        call(0, [1, 2], [3]),
        call(1, [1, 2, 3, 4], [5, 6, 7]),
        call(2, [1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11]),
    ]
    built = build(calls, builder=builder)
    trained = sorted(int(t) for x in built.traces for t in x.token_ids[x.loss_mask])
    assert trained == [3, 5, 6, 7, 10, 11]
    for trace in built.traces:
        for logprob, token in zip(trace.logprobs, trace.token_ids, strict=True):
            owner = {3: 0, 5: 1, 6: 1, 7: 1, 10: 2, 11: 2}.get(int(token))
            assert logprob in {0.0, -0.5 - (owner or 0)}


def test_a_logprob_is_trained_only_under_the_prefix_it_was_sampled_under():
    rewritten = [call(0, [1, 2], [3, 4]), call(1, [1, 2, 9, 4], [5], parent_id=CallId("c0"))]
    contexts = {
        tuple(int(t) for t in x.token_ids[: p + 1])
        for x in build(rewritten).traces
        for p in np.flatnonzero(x.loss_mask)
    }
    assert contexts == {(1, 2, 3), (1, 2, 3, 4), (1, 2, 9, 4, 5)}


def test_a_mismatch_splits_the_session_and_masks_nothing():
    built = build([call(0, [1, 2], [3, 4]), call(1, [1, 2, 9, 4], [5], fork_reason="rewritten")])
    assert len(built.traces) == 2
    assert built.report.kept == built.report.sampled == 3
    assert built.report.forks == {"rewritten": 1}


def uneven(trainer, counts=(1, 4, 2)):
    """Sessions of one, four and two steps, each a trace."""
    sessions = []
    for index, count in enumerate(counts):
        traces = [sampled(trainer, [11 + index, 20 + i, 30]) for i in range(count)]
        sessions.append(make_trajectory(*traces, reward=float(index == 0)))
    return make_group(*sessions)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_sessions_of_uneven_step_counts_make_whole_batches(minibatches):
    trainer = make_trainer(minibatches_per_step=minibatches)
    metrics = trainer.step([uneven(trainer), uneven(trainer, (3, 1, 5))])
    assert metrics.optimizer_steps == minibatches
    assert metrics.trained_tokens == 3 * (1 + 4 + 2 + 3 + 1 + 5)


def test_a_long_session_has_one_vote_in_the_baseline_and_in_the_loss():
    trainer = make_trainer()
    settings = TrainSettings(normalizer="session_mean", algorithm="dr_grpo")
    group = uneven(trainer)
    (sessions,) = credited_groups([group], settings)
    assert [s.advantages.item() for s in sessions] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    shares = {id(t): 0.0 for t in group.trajectories}
    owner = {id(x): id(t) for t in group.trajectories for x in t.traces}
    for lesson in group_lessons([group], settings):
        shares[owner[id(lesson.trace)]] += lesson.weight * int(lesson.trace.loss_mask.sum())
    assert list(shares.values()) == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("normalizer", ["token_mean", "session_mean", "constant"])
def test_the_normaliser_is_that_of_the_step_and_not_of_its_parts(normalizer):
    settings = TrainSettings(normalizer=normalizer)
    chosen = {"normalizer": normalizer, "algorithm": "dr_grpo", "lr": 1e-9, "entropy_coef": 1.0}
    trainer = make_trainer(**chosen)
    groups = [uneven(trainer), group_for(trainer)]
    first, second, both = (trainer.step(g).loss for g in ([groups[0]], [groups[1]], groups))
    parts = (21, 9) if normalizer == "token_mean" else (3, 3)
    assert min(map(abs, (first, second, both))) > 0.01
    assert both == pytest.approx((parts[0] * first + parts[1] * second) / sum(parts), rel=1e-3)
    lessons = group_lessons(groups, settings)
    total = sum(lesson.weight * int(lesson.trace.loss_mask.sum()) for lesson in lessons)
    tokens = 3 * 7 + 9
    assert total == pytest.approx(
        {"token_mean": 1.0, "session_mean": 1.0, "constant": tokens / (6 * 1024)}[normalizer]
    )


@pytest.mark.parametrize("max_tokens", [2, 5, 12])
def test_the_gradient_does_not_depend_on_how_it_is_accumulated(max_tokens):
    whole, parts = make_trainer(), make_trainer(max_tokens_per_piece=max_tokens)
    groups, accumulated = [uneven(whole), group_for(whole)], []
    first, second = whole.step(groups), parts.step(groups, progress=accumulated.append)
    assert len(accumulated) > 1
    assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-4)
    assert second.loss == pytest.approx(first.loss, abs=1e-6)


def logprobs_together_and_alone(trainer):
    """How far trained logprobs of several traces are from those of each by itself, at most."""
    traces = branching_traces()
    together = trainer.logprobs(traces)
    alone = [trainer.logprobs([trace])[0] for trace in traces]
    return max(np.abs(a - b).max() for a, b in zip(together, alone, strict=True))


def without_context(trainer):
    """How far the logprobs change by what came before the last two tokens: that they can."""
    tokens = [5, 6, 7, 8, 9]
    long, short = make_trace(tokens, [4]), make_trace(tokens[3:], [1])
    (whole,), (cut,) = (trainer.logprobs([t]) for t in (long, short))
    return abs(whole[-1] - cut[-1])


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_packed_siblings_do_not_see_each_other(family):
    trainer = Trainer(make_model(family, initializer_range=0.5), TrainSettings())
    assert trainer.notice is None  # else each is computed by itself
    assert without_context(trainer) > 0.1
    assert logprobs_together_and_alone(trainer) < 1e-3


@pytest.mark.parametrize("family", ["qwen3_5", "falcon_h1"])
def test_the_state_of_a_recurrent_model_does_not_leak_between_siblings(family):
    trainer = Trainer(make_model(family, initializer_range=0.5), TrainSettings())
    assert trainer.notice is not None
    assert without_context(trainer) > 0.1
    assert logprobs_together_and_alone(trainer) < 1e-3


def mixed(*versions: int) -> Trace:
    trace = make_trace([5, *range(11, 11 + len(versions))], range(1, 1 + len(versions)))
    return dataclasses.replace(trace, weight_versions=np.array([-1, *versions], np.int32))


@pytest.mark.parametrize(("bound", "kept"), [(2, 2), (1, 1)])
def test_a_sample_of_three_weight_versions_is_kept_or_left_out_by_its_oldest_token(bound, kept):
    group = make_group(make_trajectory(mixed(3, 4, 5)), make_trajectory(mixed(5, 5)))
    (left,), staleness = within_bound([group], version=5, bound=bound)
    assert len(left.trajectories) == kept
    assert staleness.stale_tokens == (0 if kept == 2 else 3)
    assert staleness.staleness_max == (2 if kept == 2 else 0)


def test_the_gap_to_the_engine_is_of_current_tokens_where_versions_are_mixed():
    trainer = make_trainer()
    trainer.weight_version = 5
    trace = mixed(3, 4, 5)
    off = trainer.logprobs([trace])[0] + np.array([0, 3.0, 3.0, 0.25], np.float32)
    trace = dataclasses.replace(trace, logprobs=off)
    group = make_group(make_trajectory(trace, reward=1.0), make_trajectory(trace))
    assert trainer.step([group]).logprob_gap_mean == pytest.approx(0.25, abs=1e-4)


def test_one_failed_session_leaves_the_others_to_make_up_the_group():
    trainer = make_trainer()
    whole = group_for(trainer)
    broken = make_trajectory(reward=0.0, outcome=Failed("running", "the sandbox died"))
    with_broken = make_group(*whole.trajectories, broken)
    other = make_trainer()
    first, second = trainer.step([whole]), other.step([with_broken])
    assert second.grad_norm == first.grad_norm
    assert same(parameters(trainer.model), parameters(other.model))


async def test_sampling_waits_for_training_and_does_not_pile_up_stale_sessions(tmp_path):
    bench = Bench(tmp_path, steps=8, max_staleness=2, heldout_sessions=0)
    ahead = []

    async def watch(phase: str, step: int) -> None:
        ahead.append(step - 1 - bench.trainer.weight_version)

    bench.while_collecting = watch
    await bench.loop.run()
    assert max(ahead) <= 2
    rows = [row for row in bench.rows if row["phase"] == "train"]
    assert len(rows) == 8
    assert all(row["staleness_max"] <= 2 and row["stale_sessions"] == 0 for row in rows)


GRADED = Grade(0.0, False)


@pytest.mark.parametrize("policy", ["baseline", "exclude"])
@pytest.mark.parametrize("cut", ["time", "reply", "trace", "rollout", "calls"])
def test_the_truncation_mask_does_fire(policy, cut):
    settings = TrainSettings(max_trace_tokens=20, truncated_sessions=policy)
    ended, wrong = make_trace([1, 2, 3], [2]), make_trace([1, 2, 4], [2])
    ends = {"time": TimedOut("running", GRADED), "calls": Completed(GRADED, 1, "max_calls")}
    outcome = ends.get(cut, Completed(GRADED, 0))
    last = make_trajectory(make_trace([1, 2, 5], [2]), outcome=outcome)
    if cut == "reply":
        built = build([call(0, [1, 2], [5], finish_reason="length")])
        last = dataclasses.replace(last, traces=built.traces, report=built.report)
    elif cut == "rollout":
        calls = [call(0, [1, 2], [3, 4, 5, 6])]
        built = build(calls, policy=BuildPolicy(max_trace_tokens=4))
        last = dataclasses.replace(last, traces=built.traces, report=built.report)
    elif cut == "trace":
        long = make_trace(range(30), [29])
        last = dataclasses.replace(last, traces=(*last.traces, long))
    group = make_group(make_trajectory(ended, reward=1.0), make_trajectory(wrong), last)
    assert [is_truncated(t, settings) for t in group.trajectories] == [False, False, True]
    taught = [lesson.trace for lesson in group_lessons([group], settings)]
    assert [id(t) for t in taught] == [id(ended), id(wrong)]
    assert Trainer(make_model(), settings).step([group]).truncated_sessions == 1


def test_an_advantage_is_computed_once_for_the_step_however_it_is_divided():
    settings = {"algorithm": "reinforce_pp", "minibatches_per_step": 2, "lr": 1e-9}
    trainer = make_trainer(**settings)
    high = group_for(trainer, rewards=(1.0, 1.0, 1.0))
    low = group_for(trainer, rewards=(0.0, 0.0, 0.0))
    metrics = trainer.step([high, low])
    assert metrics.optimizer_steps == 2
    assert metrics.groups_without_spread == 0
    assert metrics.loss == pytest.approx(0.0, abs=1e-3)
    assert math.isfinite(metrics.grad_norm)
    assert metrics.grad_norm > 0.0
