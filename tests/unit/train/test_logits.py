"""Logprobs are of the logits that a model makes, whatever it does behind its head."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from gradient_cases import assert_same, learned_gradients, separate_gradients, separate_logprobs
from train_cases import VOCABULARY, branching_traces, make_group, make_model, make_trajectory
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaForCausalLM,
)

from polar.errors import TrainingError
from polar.train import Trainer, TrainSettings
from polar.train.attention import ATTENTION_NAME
from polar.train.logits import Shaping

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
}


def granite():
    return GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=4.0))


def cohere():
    return CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=0.25))


def gemma2():
    """No soft cap in attention, which would keep it from trees."""
    config = Gemma2Config(**SHAPE, final_logit_softcapping=5.0, attn_logit_softcapping=None)
    return Gemma2ForCausalLM(config)


MODELS = {granite: Shaping(0.25), cohere: Shaping(0.25), gemma2: Shaping(1.0, 5.0)}


def made(make):
    torch.manual_seed(0)
    return make().eval()


@pytest.mark.parametrize("make", MODELS)
def test_what_a_model_does_behind_its_head_is_found_out(make):
    found = Shaping.of(made(make))
    assert found.scale == pytest.approx(MODELS[make].scale, rel=1e-4)
    assert found.cap == MODELS[make].cap


@pytest.mark.parametrize("make", MODELS)
def test_scaled_and_capped_logits_are_those_of_the_model(make):
    model, traces = made(make), branching_traces()
    plain = copy.deepcopy(model)
    with torch.no_grad():
        expected = [separate_logprobs(plain, trace, 0.7) for trace in traces]
    trainer = Trainer(model, TrainSettings(temperature=0.7))
    assert trainer.notice is None
    for found, trace, logprobs in zip(trainer.logprobs(traces), traces, expected, strict=True):
        mine = torch.from_numpy(found[trace.loss_mask])
        torch.testing.assert_close(mine, logprobs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", MODELS)
def test_gradients_go_back_through_what_a_model_does_behind_its_head(make):
    model, traces = made(make), branching_traces()
    expected = separate_gradients(model, traces, temperature=0.7)
    shaping = Shaping.of(model)
    model.set_attn_implementation(ATTENTION_NAME)
    actual = learned_gradients(model, traces, piece_tokens=8, temperature=0.7, shaping=shaping)
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-4, atol=1e-4)
    assert_same((expected[0], actual[1]), expected)


@pytest.mark.parametrize("make", MODELS)
def test_imitation_lowers_the_loss_of_the_models_own_logits(make):
    model, traces = made(make), branching_traces()
    with torch.no_grad():
        expected = torch.cat([separate_logprobs(model, trace) for trace in traces]).mean()
    trainer = Trainer(model, TrainSettings(temperature=0.5))
    sessions = [make_trajectory(trace) for trace in traces]
    found = trainer.supervised(sessions, epochs=1, batch_sessions=100, lr=1e-6)
    assert found.losses[0] == pytest.approx(-float(expected), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_that_meet_their_cap_do_not_hide_what_is_done(dtype):
    model = made(gemma2).to(dtype)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20.0)
        tokens = torch.arange(8)[None]
        assert (model(input_ids=tokens).logits.abs() == 5.0).any()
    assert Shaping.of(model).scale == pytest.approx(1.0, rel=1e-2)


def test_the_entropy_is_that_of_capped_logits():
    model, trace = made(gemma2), branching_traces()[0]
    ids = torch.from_numpy(trace.token_ids).long()[None]
    with torch.no_grad():
        logs = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    at = torch.from_numpy(trace.loss_mask).nonzero()[:, 0] - 1
    entropies = -(logs.exp() * logs).sum(-1)[at]
    other = dataclasses.replace(trace, logprobs=trace.logprobs * 0.9)
    group = make_group(make_trajectory(trace, reward=1.0), make_trajectory(other))
    metrics = Trainer(model, TrainSettings()).step([group])
    assert metrics.entropy == pytest.approx(float(entropies.mean()), rel=1e-4)


class Otherwise(LlamaForCausalLM):
    """Some tokens are made likelier."""

    def forward(self, *args, **kwargs):
        found = super().forward(*args, **kwargs)
        found.logits = found.logits + torch.linspace(0.0, 1.0, VOCABULARY)
        return found


def test_logits_that_are_made_otherwise_are_refused():
    with pytest.raises(TrainingError, match="not the products of its head"):
        Trainer(Otherwise(make_model().config).eval(), TrainSettings())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "qwen3_5", "mamba"])
def test_most_models_do_nothing(family, dtype):
    found = Shaping.of(make_model(family).to(dtype))
    assert found.scale == pytest.approx(1.0, rel=1e-2 if dtype == torch.bfloat16 else 1e-5)
    assert found.cap is None
