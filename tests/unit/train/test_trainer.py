"""The trainer moves probability towards reward, tells what it did, and can be stopped anywhere."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch
from train_cases import branching_traces, make_group, make_model, make_trace, make_trajectory
from transformers import AutoModelForCausalLM

from polar.errors import ConfigError, TrainingError
from polar.train import LoraSettings, Trainer, TrainSettings
from polar.types import Failed

PROMPT = [5, 6, 7, 8]
LORA = LoraSettings(rank=4, alpha=8.0, target_modules=("q_proj", "v_proj", "up_proj"))


def make_trainer(model=None, **settings):
    return Trainer(model or make_model(), TrainSettings(**({"lr": 1e-3} | settings)))


def sampled(trainer, tokens, version=0):
    """A trace whose recorded logprobs are the trainer's own: an engine that agrees exactly."""
    trace = make_trace(PROMPT + tokens, range(4, 4 + len(tokens)), version=version)
    return dataclasses.replace(trace, logprobs=trainer.logprobs([trace])[0])


def group_for(trainer, *, version=0, rewards=(1.0, 0.0, 0.0)):
    replies = ([11, 12, 13], [11, 14], [15, 16, 17, 18])
    return make_group(
        *(
            make_trajectory(sampled(trainer, reply, version), reward=reward)
            for reply, reward in zip(replies, rewards, strict=True)
        )
    )


def parameters(model):
    return [p.detach().clone() for p in model.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "dr_grpo", "normalizer": "constant"},
        {"algorithm": "rloo", "normalizer": "session_mean"},
        {"epochs_per_step": 3, "minibatches_per_step": 2},
        {"recompute": False},
        {"dtype": "bfloat16"},
        {"lora": LORA, "lr": 1e-2},
        {"lora": LORA, "lr": 1e-2, "dtype": "bfloat16"},
        {"train_embeddings": False, "frozen_layers": 1},
        {"gradient_checkpointing": True},
        {"max_tokens_per_batch": 8, "max_tokens_per_piece": 4},
    ],
    ids=str,
)
def test_what_was_rewarded_becomes_likelier_and_the_rest_less_likely(settings):
    trainer = make_trainer(**settings)
    groups = [group_for(trainer), group_for(trainer)]
    traces = [t for c in groups[0].trajectories for t in c.traces]
    before = [float(v.sum()) for v in trainer.logprobs(traces)]
    for _ in range(5):
        trainer.step(groups)
    after = [float(v.sum()) for v in trainer.logprobs(traces)]
    assert after[0] > before[0]
    assert after[2] < before[2]


def test_a_step_reports_what_it_computed():
    trainer = make_trainer()
    metrics = trainer.step([group_for(trainer), group_for(trainer, rewards=(1.0, 1.0, 1.0))])
    assert metrics.weight_version == trainer.weight_version == 1
    assert metrics.optimizer_steps == 1
    assert (metrics.groups, metrics.groups_without_spread) == (2, 1)
    assert metrics.trained_tokens == 9
    assert metrics.tree_tokens == len(PROMPT) + 3 + 1 + 4
    assert metrics.sequence_tokens == 3 * len(PROMPT) + 9
    assert metrics.tree_saving == metrics.sequence_tokens / metrics.tree_tokens
    assert metrics.ratio_mean == 1.0
    assert metrics.clip_fraction == 0.0
    assert metrics.logprob_gap_max < 1e-5
    assert 0.0 < metrics.entropy < np.log(97)


def test_a_prompt_is_computed_once_even_if_it_is_longer_than_a_batch():
    whole, parts = make_trainer(), make_trainer(max_tokens_per_batch=2, max_tokens_per_piece=2)
    first, second = whole.step([group_for(whole)]), parts.step([group_for(parts)])
    assert second.tree_tokens == first.tree_tokens == len(PROMPT) + 3 + 1 + 4
    assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-4)
    assert second.loss == pytest.approx(first.loss, abs=1e-6)


def test_the_gap_to_the_engine_is_measured_under_unchanged_weights_only():
    trainer = make_trainer()
    fresh, stale = group_for(trainer), group_for(trainer, version=7)
    off = [
        dataclasses.replace(
            c, traces=tuple(dataclasses.replace(t, logprobs=t.logprobs - 0.25) for t in c.traces)
        )
        for c in fresh.trajectories
    ]
    metrics = trainer.step([make_group(*off), stale])
    assert metrics.logprob_gap_mean == pytest.approx(0.25, abs=1e-4)
    assert trainer.step([stale]).logprob_gap_mean is None


def test_groups_without_spread_change_nothing_but_the_gap_is_still_measured():
    model = make_model()
    trainer = make_trainer(model)
    before = parameters(model)
    metrics = trainer.step([group_for(trainer, rewards=(1.0, 1.0, 1.0))])
    assert (metrics.optimizer_steps, metrics.weight_version) == (0, 0)
    assert metrics.logprob_gap_mean < 1e-5
    assert same(parameters(model), before)


def test_sessions_without_a_trained_token_are_an_error():
    trainer = make_trainer()
    empty = make_group(make_trajectory(make_trace(PROMPT, [])))
    with pytest.raises(TrainingError, match="no trained token"):
        trainer.step([empty])
    with pytest.raises(TrainingError, match="no trained token"):
        trainer.supervised(empty.trajectories, epochs=1, batch_sessions=1, lr=1e-3)


@pytest.mark.parametrize("settings", [{}, {"credit": "steps", "discount": 0.9}], ids=str)
@pytest.mark.parametrize("sessions", [0, 2])
def test_a_step_whose_sessions_all_broke_or_were_too_old_trains_nothing_and_ends_nothing(
    settings, sessions
):
    model = make_model()
    trainer = make_trainer(model, **settings)
    before = parameters(model)
    broken = [make_trajectory(outcome=Failed("running", "the engine is gone"))] * sessions
    metrics = trainer.step([make_group(*broken)])
    assert (metrics.optimizer_steps, metrics.trained_tokens, metrics.weight_version) == (0, 0, 0)
    assert metrics.groups_without_spread == 1
    assert same(parameters(model), before)


def test_a_trace_that_is_too_long_is_dropped_and_counted():
    trainer = make_trainer()
    short = make_trainer(max_trace_tokens=7)
    metrics = short.step([group_for(trainer)])
    assert metrics.dropped_tokens == 4
    assert metrics.sequence_tokens == 7 + 6
    assert metrics.trained_tokens == 5
    with pytest.raises(TrainingError, match="longer than 7"):
        short.logprobs([make_trace(range(8), [7])])


def test_sessions_of_another_tokenizer_are_refused():
    with pytest.raises(TrainingError, match="the token 97, and the model knows 97"):
        make_trainer().supervised(
            [make_trajectory(make_trace([1, 97], [1]))], epochs=1, batch_sessions=1, lr=1e-3
        )


def test_a_token_that_an_engine_made_up_is_refused_before_it_is_trained_on():
    traces = [make_trace([1, 97], [1]), make_trace([1, 2], [1])]
    group = make_group(*(make_trajectory(trace, reward=float(n)) for n, trace in enumerate(traces)))
    with pytest.raises(TrainingError, match="the token 97, and the model knows 97"):
        make_trainer().step([group])


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 20}])
def test_a_distribution_that_is_cut_off_is_refused(cut):
    with pytest.raises(TrainingError, match=next(iter(cut))):
        make_trainer(**cut)


def test_layers_that_do_not_exist_cannot_be_adapted():
    with pytest.raises(ConfigError, match="no linear layer"):
        make_trainer(lora=LoraSettings(target_modules=("w_pack",)))


def test_a_loss_that_is_not_finite_undoes_the_whole_step():
    model = make_model()
    trainer = make_trainer(model, minibatches_per_step=2, lr=1e30)
    before = parameters(model)
    with pytest.raises(TrainingError, match=r"the (loss|gradient norm) is (nan|inf)"):
        trainer.step([group_for(trainer), group_for(trainer)])
    assert same(parameters(model), before)
    assert trainer.weight_version == 0


def allocate_too_much():
    torch.empty(2**60, dtype=torch.uint8)


def fill_the_gpu():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (fill_the_gpu, r"the GPU's memory is full.*\(CUDA out of memory\)"),
        (allocate_too_much, r"the machine's memory is full.*\(DefaultCPUAllocator: .*bytes\)"),
        (lambda: bytearray(2**60), r"the machine's memory is full.*\(MemoryError\)"),
    ],
)
def test_a_step_that_the_memory_does_not_hold_is_undone_and_says_what_to_lower(fill, said):
    model = make_model()
    trainer = make_trainer(model, minibatches_per_step=2)
    groups, before = [group_for(trainer), group_for(trainer)], parameters(model)

    def full(share):
        if share > 0.5:
            fill()

    with pytest.raises(TrainingError, match="longest session has 8 tokens") as raised:
        trainer.step(groups, progress=full)
    assert re.search(said, raised.value.what)
    assert "max_trace_tokens" in raised.value.fix
    assert same(parameters(model), before)
    sessions = [t for group in groups for t in group.trajectories]
    with pytest.raises(TrainingError, match="longest session has 8 tokens"):
        trainer.supervised(sessions, epochs=1, batch_sessions=6, lr=1e-3, progress=full)
    assert trainer.weight_version == 0


def test_a_step_after_a_cancelled_one_has_no_gradient_left_over():
    trainer, undisturbed = (make_trainer(max_tokens_per_piece=2) for _ in range(2))
    group = group_for(trainer)

    def stop(share):
        raise Stopped

    with pytest.raises(Stopped):
        trainer.step([group], progress=stop)
    assert trainer.step([group]).grad_norm == undisturbed.step([group]).grad_norm


class Stopped(Exception):
    """Raised by a progress callback."""


def test_a_cancelled_warm_start_leaves_the_weights():
    model = make_model()
    trainer = make_trainer(model)
    before = parameters(model)

    def stop_late(share):
        if share > 0.6:
            raise Stopped

    sessions = group_for(trainer).trajectories
    with pytest.raises(Stopped):
        trainer.supervised(sessions, epochs=2, batch_sessions=1, lr=1e-3, progress=stop_late)
    assert same(parameters(model), before)


def test_progress_rises_to_one():
    trainer, shares = make_trainer(max_tokens_per_piece=2, epochs_per_step=2), []
    trainer.step([group_for(trainer)], progress=shares.append)
    assert shares == sorted(shares)
    assert len(shares) > 2
    assert shares[-1] == 1.0


def test_supervised_passes_lower_the_loss_and_report_it():
    trainer = make_trainer(temperature=0.5)
    sessions = [make_trajectory(t) for t in branching_traces()]
    metrics = trainer.supervised(sessions, epochs=4, batch_sessions=3, lr=3e-3)
    assert list(metrics.losses) == sorted(metrics.losses, reverse=True)
    assert metrics.optimizer_steps == 4 * 3
    assert metrics.trained_tokens == 4 * sum(t.loss_mask.sum() for t in branching_traces())
    assert metrics.weight_version == 1


def test_the_supervised_loss_is_the_mean_over_sampled_tokens():
    trainer = make_trainer()
    traces = branching_traces()
    expected = -sum(v.sum() for v in trainer.logprobs(traces)) / sum(
        t.loss_mask.sum() for t in traces
    )
    sessions = [make_trajectory(t) for t in traces]
    metrics = trainer.supervised(sessions, epochs=1, batch_sessions=100, lr=1e-6)
    assert metrics.losses[0] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"lora": LORA}], ids=str)
def test_the_users_model_follows_and_keeps_its_own_attention(settings):
    model = make_model()
    implementation = model.config._attn_implementation
    trainer = make_trainer(model, **settings)
    before = parameters(model)
    trainer.step([group_for(trainer)])
    assert not same(parameters(model), before)
    assert model.config._attn_implementation == implementation
    trace = branching_traces()[0]
    logits = model(torch.from_numpy(trace.token_ids).long()[None]).logits[0].log_softmax(-1)
    at = np.flatnonzero(trace.loss_mask)
    expected = logits[at - 1, trace.token_ids[at]].detach().numpy()
    tolerance = 0.05 if "dtype" in settings else 1e-5
    np.testing.assert_allclose(trainer.logprobs([trace])[0][at], expected, atol=tolerance)


def test_a_model_in_bfloat16_learns_steps_smaller_than_its_precision():
    model = make_model().to(torch.bfloat16)
    trainer = make_trainer(model, dtype="bfloat16", lr=1e-5)
    before = parameters(model)
    for _ in range(20):
        trainer.step([group_for(trainer)])
    assert not same(parameters(model), before)


def test_a_model_in_bfloat16_is_not_trained_in_float32():
    with pytest.raises(TrainingError, match="cannot be trained"):
        make_trainer(make_model().to(torch.bfloat16), dtype="float32")


def test_an_adapter_leaves_all_other_weights_alone():
    model = make_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = make_trainer(model, lora=LORA)
    trainer.step([group_for(trainer)])
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert {name.split(".")[-2] for name in changed} == set(LORA.target_modules)


def test_frozen_layers_stay_as_they_are():
    model = make_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = make_trainer(model, train_embeddings=False, frozen_layers=2)
    trainer.step([group_for(trainer)])
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert {n.split(".")[2] for n in changed if "layers" in n} == {"2"}
    assert not any("embed" in n for n in changed)


def test_the_learning_rate_warms_up():
    trainer = make_trainer(warmup_steps=4, lr=1e-3)
    rates = [trainer.step([group_for(trainer)]).lr for _ in range(5)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3])


@pytest.mark.parametrize("settings", [{}, {"lora": LORA}, {"dtype": "bfloat16"}], ids=str)
def test_a_resumed_trainer_goes_on_bit_for_bit(tmp_path, settings):
    model = make_model()
    trainer = make_trainer(model, warmup_steps=3, **settings)
    sessions = [make_trajectory(t) for t in branching_traces()]
    group = group_for(trainer)
    trainer.supervised(sessions, epochs=1, batch_sessions=2, lr=1e-3)
    trainer.step([group])
    trainer.save_state(tmp_path / "state")

    fresh = make_model()
    resumed = make_trainer(fresh, warmup_steps=3, **settings)
    resumed.load_state(tmp_path / "state")
    for each in (trainer, resumed):
        each.step([group])
        each.supervised(sessions, epochs=1, batch_sessions=2, lr=1e-3)
    assert resumed.weight_version == trainer.weight_version == 4
    assert same(parameters(fresh), parameters(model))
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_the_state_of_another_model_is_refused(tmp_path):
    make_trainer().save_state(tmp_path / "state")
    with pytest.raises(TrainingError, match="another model"):
        make_trainer(lora=LORA).load_state(tmp_path / "state")


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_a_damaged_state_is_refused_before_anything_is_changed(tmp_path, damage):
    path = tmp_path / "state"
    make_trainer().save_state(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    match damage:
        case "cut":
            path.write_bytes(content[:5000])
        case "flipped":
            path.write_bytes(content)
        case "missing":
            path.unlink()
    fresh = make_trainer()
    before = [parameter.clone() for parameter in fresh.model.parameters()]
    with pytest.raises(TrainingError, match="damaged") as raised:
        fresh.load_state(path)
    assert raised.value.where == str(path)
    assert all(map(torch.equal, before, fresh.model.parameters()))


def test_a_saved_model_loads_and_replaces_an_earlier_one(tmp_path):
    model = make_model()
    trainer = make_trainer(model, lora=LORA)
    for _ in range(2):
        trainer.step([group_for(trainer)])
        trainer.save(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert same(parameters(loaded), parameters(model))
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
