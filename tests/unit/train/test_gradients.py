"""Trees give the logprobs and gradients of separate sequences."""

from __future__ import annotations

import pytest
import torch
from gradient_cases import (
    assert_same,
    gradients_of,
    learned_gradients,
    separate_gradients,
    separate_logprobs,
    tree_gradients,
)
from peft import LoraConfig, get_peft_model
from train_cases import branching_traces, make_model, make_trace

from polar.train.attention import ATTENTION_NAME
from polar.train.lora import adapt
from polar.train.policy import Policy
from polar.train.settings import LoraSettings
from polar.train.tree_batch import build_tree


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("max_tokens", [10_000, 40])
def test_a_tree_has_the_gradients_of_separate_sequences(family, max_tokens):
    model, traces = make_model(family), branching_traces()
    expected = separate_gradients(model, traces, temperature=0.7)
    model.set_attn_implementation(ATTENTION_NAME)
    actual = tree_gradients(model, traces, max_tokens=max_tokens, temperature=0.7)
    assert_same(actual, expected)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("piece_tokens", [1, 25])
@pytest.mark.parametrize("keep", ["everything", "products", "inputs"])
def test_a_tree_learned_in_pieces_has_the_gradients_of_separate_sequences(
    family, piece_tokens, keep
):
    model, traces = make_model(family), branching_traces()
    expected = separate_gradients(model, traces, temperature=0.7)
    model.set_attn_implementation(ATTENTION_NAME)
    actual = learned_gradients(model, traces, piece_tokens=piece_tokens, keep=keep, temperature=0.7)
    assert_same(actual, expected)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("keep", ["products", "inputs"])
def test_an_adapter_on_a_tree_has_the_gradients_of_separate_sequences(family, keep):
    adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    model = get_peft_model(make_model(family), adapters)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.eval()
    plain, traces = model.get_base_model(), branching_traces()
    expected = separate_gradients(plain, traces)
    plain.set_attn_implementation(ATTENTION_NAME)
    assert_same(tree_gradients(plain, traces, keep=keep), expected)
    assert_same(learned_gradients(plain, traces, piece_tokens=8, keep=keep), expected)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_a_merged_adapter_on_a_tree_has_the_gradients_of_separate_sequences(family):
    model, traces = make_model(family), branching_traces()
    adapters = adapt(model, model, LoraSettings(rank=4), seed=0)
    for adapter in adapters:
        torch.nn.init.normal_(adapter.up, std=0.1)
        adapter.merge()
    expected = separate_gradients(model, traces)
    model.set_attn_implementation(ATTENTION_NAME)
    assert_same(learned_gradients(model, traces, piece_tokens=8), expected)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_checkpointed_layers_have_the_gradients_of_separate_sequences(family):
    model, traces = make_model(family), branching_traces()
    expected = separate_gradients(model, traces)
    model.set_attn_implementation(ATTENTION_NAME)
    assert_same(tree_gradients(model, traces, checkpoint_above=0), expected)


@pytest.mark.parametrize("held", [6, 12, 24])
def test_pieces_of_which_the_deeper_are_checkpointed_have_the_gradients_of_sequences(held):
    model, traces = make_model(), branching_traces()
    expected = separate_gradients(model, traces)
    model.set_attn_implementation(ATTENTION_NAME)
    actual = learned_gradients(model, traces, piece_tokens=4, checkpoint_above=held)
    assert_same(actual, expected)


def test_a_window_is_counted_along_the_path_and_not_along_the_rows():
    """A second reply lies behind the first, but the prompt is as near to it."""
    prompt, first, second = list(range(3, 15)), [20] * 30, [30, 31, 32]
    traces = [make_trace(prompt + first, range(12, 42)), make_trace(prompt + second, range(12, 15))]
    model = make_model("gemma3")
    expected = separate_gradients(model, traces)
    changed = [traces[0], make_trace([*prompt[:8], 50, *prompt[9:], *second], range(12, 15))]
    apart = separate_logprobs(model, changed[1])
    assert not torch.allclose(apart, expected[0][-3:], atol=1e-4)  # the window reaches the prompt
    model.set_attn_implementation(ATTENTION_NAME)
    assert_same(learned_gradients(model, traces, piece_tokens=1), expected)


def test_double_precision_agrees_to_rounding():
    model, traces = make_model().double(), branching_traces()
    expected = separate_gradients(model, traces)
    model.set_attn_implementation(ATTENTION_NAME)
    assert_same(tree_gradients(model, traces), expected, tolerance=1e-5)


def test_a_repeated_session_counts_twice():
    model, trace = make_model(), make_trace(range(3, 20), range(8, 17))
    model.set_attn_implementation(ATTENTION_NAME)
    batch = build_tree([trace, trace])
    logprobs, _ = Policy(model).logprobs(batch)
    assert batch.token_ids.size == 17
    assert logprobs.numel() == 18
    twice = gradients_of(model, logprobs.sum())
    once = gradients_of(model, Policy(model).logprobs(build_tree([trace]))[0].sum())
    for a, b in zip(twice, once, strict=True):
        torch.testing.assert_close(a, 2 * b)
