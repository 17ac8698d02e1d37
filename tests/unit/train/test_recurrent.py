"""Models that cannot be computed along trees are recognised, and trained as separate sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradient_cases import assert_same, learned_gradients, separate_gradients, separate_logprobs
from train_cases import branching_traces, make_group, make_model, make_trajectory

from polar.errors import TrainingError
from polar.train import Trainer, TrainSettings
from polar.train.attention import ATTENTION_NAME
from polar.train.policy import Policy
from polar.train.support import tree_obstacle
from polar.train.tree_batch import build_tree

OBSTACLES = {
    "qwen3_5": "2 of 3 layers do not use standard attention",
    "mamba": "2 of 2 layers do not use standard attention",
    "falcon_h1": "carry state from one branch into the next",
    "gemma2": "softcap",
}


@pytest.mark.parametrize("family", OBSTACLES)
def test_a_model_with_recurrent_layers_or_soft_caps_is_recognised(family):
    notice = Trainer(make_model(family), TrainSettings()).notice
    assert "sequence of its own" in notice
    assert OBSTACLES[family] in notice


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_a_model_with_standard_attention_has_no_obstacle(family, dtype):
    assert Trainer(make_model(family), TrainSettings(dtype=dtype)).notice is None


@pytest.mark.parametrize("keep", ["everything", "inputs"])
@pytest.mark.parametrize("family", OBSTACLES)
def test_its_gradients_are_those_of_separate_sequences(family, keep):
    model, traces = make_model(family), branching_traces()
    expected = separate_gradients(model, traces)
    above = 0 if keep == "inputs" else None
    assert_same(learned_gradients(model, traces, share=False, checkpoint_above=above), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen3_5", "mamba"])
def test_the_trainer_learns_with_such_a_model(family, dtype):
    model, traces = make_model(family), branching_traces()
    expected = [separate_logprobs(model, t).detach().numpy() for t in traces]
    trainer = Trainer(model, TrainSettings(lr=1e-2, dtype=dtype))
    tolerance = 1e-5 if dtype == "float32" else 0.05
    for found, trace, reference in zip(trainer.logprobs(traces), traces, expected, strict=True):
        np.testing.assert_allclose(found[trace.loss_mask], reference, atol=tolerance)
    group = make_group(*(make_trajectory(t, reward=k % 2) for k, t in enumerate(traces)))
    metrics = trainer.step([group])
    assert metrics.tree_tokens == metrics.sequence_tokens
    after = [separate_logprobs(model, t).detach().sum() for t in traces]
    gains = [float(a - b.sum()) for a, b in zip(after, expected, strict=True)]
    assert sum(gains[1::2]) > sum(gains[0::2])


def test_a_batch_of_several_branches_is_refused():
    with pytest.raises(TrainingError, match="cannot be computed along trees"):
        Policy(make_model("mamba"), shares_prefixes=False).logprobs(build_tree(branching_traces()))


def test_a_hidden_dependence_between_branches_is_found():
    """A layer that looks at the row before it asks for the tree, and still is no tree's layer."""
    model = make_model()
    model.set_attn_implementation(ATTENTION_NAME)
    assert tree_obstacle(model) is None
    attention = model.model.layers[1].self_attn
    attention.register_forward_pre_hook(
        lambda _, args, kwargs: (args, kwargs | {"hidden_states": shifted(kwargs)}),
        with_kwargs=True,
    )
    assert "from one branch into the next" in tree_obstacle(model)


def shifted(kwargs):
    states = kwargs["hidden_states"]
    return states + torch.cumsum(states, 1)
