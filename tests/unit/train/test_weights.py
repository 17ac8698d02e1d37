"""A model that is computed with in bfloat16 is what loading it in bfloat16 gives."""

import pytest
import torch
from train_cases import make_model
from transformers import AutoModelForCausalLM

from polar.train.policy import Policy
from polar.train.reference import Reference
from polar.train.settings import TrainSettings
from polar.train.weights import Weights

POSITIONS = 4_000 + torch.arange(40)[None]
"""Where frequencies rounded to bfloat16 are whole turns away."""


def working_copy(model):
    return Weights.of(model, TrainSettings(dtype="bfloat16")).working


def reference_copy(model):
    policy = Policy(working_copy(model))
    return Reference.of(model, policy, ()).policy.model


def logits(model):
    model.set_attn_implementation("eager")
    tokens = (torch.arange(40) * 7 % 97)[None].to(model.device)
    with torch.no_grad():
        return model(tokens, position_ids=POSITIONS.to(model.device), use_cache=False).logits


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("copied", [working_copy, reference_copy])
def test_late_positions_are_as_exact_in_bfloat16_as_in_a_model_loaded_so(family, copied, tmp_path):
    model = make_model(family)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).to(model.device)

    found = copied(model)

    assert found.dtype == torch.bfloat16
    assert torch.equal(logits(found), logits(loaded))


def test_a_model_given_in_bfloat16_keeps_its_exact_frequencies():
    given = AutoModelForCausalLM.from_config(make_model().config, dtype=torch.bfloat16)
    expected = given.base_model.rotary_emb.inv_freq.clone()

    working = working_copy(given)

    assert expected.dtype == torch.float32
    assert torch.equal(working.base_model.rotary_emb.inv_freq, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_working_copy_leaves_the_users_model_as_it_was(dtype):
    model = make_model()
    before = {name: (id(b), b.dtype) for name, b in model.named_buffers()}

    Weights.of(model, TrainSettings(dtype=dtype))

    assert {name: (id(b), b.dtype) for name, b in model.named_buffers()} == before
