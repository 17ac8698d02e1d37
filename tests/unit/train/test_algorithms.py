"""Losses and gradients of whole steps equal those of a plain implementation, token by token."""

from __future__ import annotations

import copy
import dataclasses
import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from train_cases import VOCABULARY, make_group, make_model, make_trace, make_trajectory

from polar.train import LoraSettings, Trainer, TrainSettings
from polar.train.reference import Reference
from polar.train.tree_batch import build_tree
from polar.types import Completed, Grade, TimedOut

DAPO = {"clip_low": 0.2, "clip_high": 0.28, "recompute": False}
GSPO = {"ratio": "sequence", "clip_low": 0.03, "clip_high": 0.04, "recompute": False}
CASES = {
    "grpo": {"clip_high": 0.2, "normalizer": "session_mean", "recompute": False},
    "dapo": DAPO | {"overlong": {"max_tokens": 12, "buffer_tokens": 6, "penalty": 0.5}},
    "dr_grpo": {"algorithm": "dr_grpo", "normalizer": "constant", "normalizer_tokens": 9},
    "rloo": {"algorithm": "rloo", "correction": "none"},
    "gspo": GSPO | {"normalizer": "session_mean"},
    "reinforce_pp": {"algorithm": "reinforce_pp"},
    "reinforce_pp_baseline": {"algorithm": "reinforce_pp_baseline", "temperature": 0.7},
    "tis": {"tis_cap": 1.1},
    "icepop": {"correction": "icepop", "icepop_band": [0.8, 1.2]},
    "kl in the loss": {"kl": {"coefficient": 0.3}},
    "kl in the reward": {"kl": {"coefficient": 0.3, "within": "reward"}, "algorithm": "dr_grpo"},
    "kl in the reward of reinforce_pp": {
        "kl": {"coefficient": 0.3, "within": "reward"},
        "algorithm": "reinforce_pp",
    },
    "entropy": {"entropy_coef": 0.2},
    "truncated": {"truncated_sessions": "baseline"},
}


def random_groups(seed: int, model):
    """Two or three groups of sessions of one or two traces each, with near-true logprobs."""
    random = np.random.default_rng(seed)
    return [random_group(random, model) for _ in range(random.integers(2, 4))]


def random_group(random, model):
    prompt = random.integers(3, VOCABULARY, 5).tolist()
    sessions = []
    for index in range(int(random.integers(2, 5))):
        traces = [random_trace(random, prompt, model) for _ in range(random.integers(1, 3))]
        reward = float(random.integers(0, 3)) / 2
        grade = Grade(reward, reward > 0)
        outcome = TimedOut("running", grade) if index == 1 else Completed(grade, 0)
        sessions.append(make_trajectory(*traces, reward=reward, outcome=outcome))
    return make_group(*sessions)


def random_trace(random, prompt, model):
    reply = random.integers(3, VOCABULARY, random.integers(2, 8)).tolist()
    at = random.choice(np.arange(5, 5 + len(reply)), int(random.integers(1, len(reply) + 1)), False)
    trace = make_trace(prompt + reply, sorted(at.tolist()))
    true = np.zeros(len(prompt + reply), np.float32)
    with torch.no_grad():
        logs = logits_of(model, trace).log_softmax(-1)
    for position in at:
        true[position] = logs[position - 1, trace.token_ids[position]]
    noise = random.normal(0.0, 0.3, true.size).astype(np.float32)
    return dataclasses.replace(trace, logprobs=np.where(trace.loss_mask, true + noise, 0.0))


def logits_of(model, trace):
    return model(torch.from_numpy(trace.token_ids).long()[None], use_cache=False).logits[0].float()


def plain_advantages(groups, s, divergence):
    """One number a session, or None where it does not count; by the statistics module."""
    rewards = []
    for group in groups:
        row = []
        for t in group.trajectories:
            r = t.reward
            if s.overlong:
                start = s.overlong.max_tokens - s.overlong.buffer_tokens
                sampled = sum(int(x.loss_mask.sum()) for x in t.traces)
                if sampled > start:
                    share = (sampled - start) / s.overlong.buffer_tokens
                    r -= s.overlong.penalty * min(share, 1)
            if s.kl and s.kl.within == "reward":
                r -= s.kl.coefficient * divergence[id(t)]
            row.append(r)
        rewards.append(row)
    every = [r for row in rewards for r in row]
    raw = [{t.reward for t in group.trajectories} for group in groups]
    over_step = s.algorithm == "reinforce_pp"
    centred = [r - statistics.fmean(row) for row in rewards for r in row]
    found = []
    for group, row in zip(groups, rewards, strict=True):
        mean = statistics.fmean(row)
        earned = set[float]().union(*raw) if over_step else {t.reward for t in group.trajectories}
        for r in row:
            match s.algorithm:
                case "grpo":
                    value = (r - mean) / (statistics.stdev(row) + 1e-4) if len(set(row)) > 1 else 0
                case "dr_grpo":
                    value = r - mean
                case "rloo":
                    value = (r - mean) * len(row) / (len(row) - 1)
                case "reinforce_pp":
                    value = (r - statistics.fmean(every)) / (statistics.stdev(every) + 1e-4)
                case "reinforce_pp_baseline":
                    value = (r - mean) / (statistics.stdev(centred) + 1e-4)
            if s.kl and s.kl.within == "reward" and len(earned) < 2:
                value = 0.0
            found.append(value)
    return iter(found)


def plain_tokens(model, trace, temperature):
    """Logprob and entropy of each trained token, each from the whole distribution."""
    logs = (logits_of(model, trace) / temperature).log_softmax(-1)
    return [
        (logs[p - 1, trace.token_ids[p]], -(logs[p - 1].exp() * logs[p - 1]).sum())
        for p in np.flatnonzero(trace.loss_mask)
    ]


def plain_divergence(model, reference, groups, temperature):
    found = {}
    for t in (t for g in groups for t in g.trajectories):
        pairs = [
            (now[0].item(), then[0].item())
            for trace in t.traces
            for now, then in zip(
                plain_tokens(model, trace, temperature),
                plain_tokens(reference, trace, temperature),
                strict=True,
            )
        ]
        found[id(t)] = sum(now - then for now, then in pairs)
    return found


def plain_loss(model, reference, groups, s):
    """The whole step's loss in loops over sessions, traces and tokens."""
    divergence = plain_divergence(model, reference, groups, s.temperature) if s.kl else {}
    values = plain_advantages(groups, s, divergence)
    kept = []
    for group in groups:
        row = [(t, next(values)) for t in group.trajectories]
        if any(a for _, a in row):
            kept += row
    if s.truncated_sessions == "baseline":
        kept = [(t, a) for t, a in kept if not isinstance(t.outcome, TimedOut)]
    sizes = {id(t): sum(int(x.loss_mask.sum()) for x in t.traces) for t, _ in kept}
    loss = torch.zeros(())
    for t, advantage in kept:
        weight = {
            "token_mean": 1 / sum(sizes.values()),
            "session_mean": 1 / (len(kept) * sizes[id(t)]),
            "constant": 1 / (len(kept) * s.normalizer_tokens),
        }[s.normalizer]
        for trace in t.traces:
            loss = loss - weight * plain_gain(model, reference, trace, advantage, s)
    return loss


def plain_gain(model, reference, trace, advantage, s):
    now = plain_tokens(model, trace, s.temperature)
    then = plain_tokens(reference, trace, s.temperature) if s.kl else []
    engine = [float(trace.logprobs[p]) for p in np.flatnonzero(trace.loss_mask)]
    olds = [v.item() for v, _ in now] if s.recompute else engine
    ratios = [torch.exp(v - old) for (v, _), old in zip(now, olds, strict=True)]
    if s.ratio == "sequence":
        whole = torch.stack([v for v, _ in now]).sum() - sum(olds)
        ratios = [torch.exp(whole / len(now))] * len(now)
    gain = torch.zeros(())
    for i, (value, entropy) in enumerate(now):
        weight = math.exp(olds[i] - engine[i])
        if s.correction == "none" or not s.recompute:
            weight = 1.0
        elif s.correction == "tis":
            weight = min(weight, s.tis_cap)
        elif not s.icepop_band[0] <= weight <= s.icepop_band[1]:
            weight = 0.0
        low, high = 1 - s.clip_low, 1 + s.clip_high
        inside = torch.clamp(ratios[i], low, high)
        gain = gain + weight * torch.minimum(ratios[i] * advantage, inside * advantage)
        if s.kl and s.kl.within == "loss":
            apart = then[i][0].item() - value
            gain = gain - s.kl.coefficient * (torch.exp(apart) - apart - 1)
        gain = gain + s.entropy_coef * entropy
    return gain


def moved(trainer):
    """Make the policy differ from the reference."""
    trace = make_trace(range(3, 20), range(8, 17))
    trainer.supervised([make_trajectory(trace)], epochs=3, batch_sessions=1, lr=3e-3)
    return trainer


def gradient_of(trainer, groups):
    found = []

    def keep():
        found.extend(p.grad.clone() for p in trainer.model.parameters())

    return trainer.step(groups, before_update=keep), found


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=2)
@given(seed=st.integers(0, 10_000))
def test_a_step_has_the_loss_and_the_gradient_of_a_plain_implementation(case, seed):
    chosen = TrainSettings.model_validate(CASES[case] | {"lr": 1e-6})
    reference, model = make_model(), make_model()
    trainer = moved(Trainer(model, chosen))
    plain = copy.deepcopy(model)
    groups = random_groups(seed, plain)
    expected = plain_loss(plain, reference, groups, chosen)
    metrics, gradient = gradient_of(trainer, groups)
    if not gradient:
        assert not expected.requires_grad
        return
    expected.backward()
    assert metrics.loss == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    for found, parameter in zip(gradient, plain.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=2)
@given(seed=st.integers(0, 10_000), max_tokens=st.integers(8, 60))
def test_pieces_do_not_change_loss_or_gradient(case, seed, max_tokens):
    chosen = TrainSettings.model_validate(CASES[case] | {"lr": 1e-6})
    split = chosen.model_copy(
        update={"max_tokens_per_batch": max_tokens, "max_tokens_per_piece": 8}
    )
    model = make_model()
    groups = random_groups(seed, model)
    (whole, first), (parts, second) = (
        gradient_of(moved(Trainer(copy.deepcopy(model), each)), groups) for each in (chosen, split)
    )
    assert parts.tree_tokens == whole.tree_tokens
    assert parts.trained_tokens == whole.trained_tokens
    assert parts.loss == pytest.approx(whole.loss, rel=1e-4, abs=1e-6)
    for found, other in zip(first, second, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-3, atol=2e-5)


def test_tokens_beyond_the_icepop_band_are_counted():
    model = make_model()
    groups = random_groups(5, model)
    traces = [x for g in groups for t in g.trajectories for x in t.traces]
    trainer = Trainer(
        model, TrainSettings(correction="icepop", icepop_band=(0.8, 1.2), algorithm="reinforce_pp")
    )
    ratio = np.concatenate(
        [
            np.exp(now - trace.logprobs)[trace.loss_mask]
            for now, trace in zip(trainer.logprobs(traces), traces, strict=True)
        ]
    )
    beyond = float(((ratio < 0.8) | (ratio > 1.2)).mean())
    assert 0.1 < beyond < 0.9
    metrics = trainer.step(groups)
    assert metrics.engine_bounded_fraction == pytest.approx(beyond)
    assert metrics.engine_weight_mean == pytest.approx(
        float(np.where((ratio < 0.8) | (ratio > 1.2), 0.0, ratio).mean()), rel=1e-4
    )


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4, target_modules=("q_proj",))], ids=str)
@pytest.mark.parametrize("within", ["loss", "reward"])
def test_the_reference_is_the_model_before_any_training(lora, within):
    model, untouched = make_model(), make_model()
    kl = {"coefficient": 0.1, "within": within}
    trainer = moved(Trainer(model, TrainSettings(kl=kl, lora=lora)))
    weights = [p.detach().clone() for p in model.parameters()]
    traces = [make_trace(range(3, 20), range(8, 17)), make_trace(range(3, 12), [8])]
    group = make_group(*(make_trajectory(t, reward=r) for t, r in zip(traces, (1, 0), strict=True)))

    reference = trainer._reference
    found = reference.logprobs(build_tree(traces[:1]))

    expected = torch.stack([v for v, _ in plain_tokens(untouched, traces[0], 1.0)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert isinstance(reference, Reference)
    assert trainer.step([group]).kl > 0.0
    assert Trainer(make_model(), TrainSettings(kl=kl, lora=lora)).step([group]).kl == pytest.approx(
        0.0, abs=1e-5
    )


def test_entropy_rises_with_a_bonus_and_nothing_else_to_gain():
    model = make_model(initializer_range=0.5)
    trace = make_trace(range(3, 20), range(8, 17))
    other = dataclasses.replace(trace, logprobs=trace.logprobs * 0.9)
    group = make_group(make_trajectory(trace, reward=1.0), make_trajectory(other, reward=0.0))
    trainer = Trainer(model, TrainSettings(entropy_coef=1.0, correction="none", lr=1e-3))
    entropies = [trainer.step([group]).entropy for _ in range(5)]
    assert entropies == sorted(entropies)
    assert entropies[-1] > entropies[0] + 0.05
