"""Both forward passes against the models' own."""

import pytest
import torch
from tiny_models import MODELS, prompt_of, tiny_model

from polar.engines.embedded import attention
from polar.engines.embedded.choosing import choose_pass
from polar.engines.embedded.fused import FusedPass
from polar.engines.embedded.native import compile_decode
from polar.engines.embedded.step import KeyValueCache, Run, Step
from polar.engines.settings import EmbeddedSettings
from polar.errors import EngineError

ENDS = (20, 33, 34, 35)
OTHER_ENDS = (1, 2, 3, 40)


def cache_for(model, **chosen):
    text = model.config
    return KeyValueCache(
        layers=text.num_hidden_layers,
        slots=3,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        max_context=text.max_position_embeddings,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        **chosen,
    )


@torch.inference_mode()
def largest_difference(model, forward, cache):
    """Run two sequences side by side in odd pieces; compare with one plain pass of each."""
    sequences = {2: prompt_of(ENDS[-1], seed=1), 0: prompt_of(OTHER_ENDS[-1], seed=2)}
    worst = 0.0
    starts = {2: 0, 0: 0}
    for ends in zip(ENDS, OTHER_ENDS, strict=True):
        runs = []
        for slot, end in zip((2, 0), ends, strict=True):
            runs.append(Run(slot, starts[slot], sequences[slot][starts[slot] : end]))
            starts[slot] = end
        step = Step(runs, cache)
        found = forward(step).log_softmax(dim=-1)
        for row, run in enumerate(step.runs):
            own = model(torch.tensor([sequences[run.slot][: run.end]])).logits[0, -1].float()
            worst = max(worst, (found[row] - own.log_softmax(dim=-1)).abs().max().item())
    return worst


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_pass_gives_the_models_own_logprobs_whatever_the_pieces(name):
    model = tiny_model(name)
    cache = cache_for(model)
    chosen = choose_pass(model, cache, EmbeddedSettings())
    assert largest_difference(tiny_model(name), chosen.forward, cache) < 1e-4


@pytest.mark.parametrize(
    ("name", "expected"),
    [("llama", "fused"), ("qwen2", "fused"), ("qwen3", "fused"), ("olmo2", "model")],
)
def test_the_lean_pass_is_taken_where_it_is_right_and_only_there(name, expected):
    model = tiny_model(name)
    assert choose_pass(model, cache_for(model), EmbeddedSettings()).name == expected


@pytest.mark.parametrize("instructions", ["this machine's", "none for bfloat16"])
def test_a_lean_pass_in_bfloat16_stays_near_the_model(instructions, monkeypatch):
    if instructions != "this machine's":
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    model = tiny_model()
    forward = FusedPass(model, torch.bfloat16)
    assert 0.0 < largest_difference(model, forward, cache_for(model)) < 0.5


def test_a_refreshed_pass_serves_the_changed_parameters():
    model = tiny_model()
    forward = FusedPass(model, torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert largest_difference(model, forward, cache_for(model)) > 1e-2
    forward.refresh()
    assert largest_difference(model, forward, cache_for(model)) < 1e-4


def test_a_model_with_a_sliding_window_is_refused():
    model = tiny_model("qwen2")
    for layer in model.model.layers:
        layer.self_attn.sliding_window = 8
    with pytest.raises(EngineError, match="sliding window"):
        choose_pass(model, cache_for(model), EmbeddedSettings())


def kernels(head_dim, group):
    """The compiled kernel where there is a compiler, and torch's."""
    return [attention.decode, compile_decode(head_dim, group) or attention.decode]


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("head_dim", "group"), [(64, 3), (16, 2), (80, 1), (128, 8)])
@pytest.mark.parametrize("which", ["torch", "compiled"])
def test_a_kernel_attends_to_all_of_a_slot_and_nothing_else(head_dim, group, which):
    decode = kernels(head_dim, group)[which == "compiled"]
    query, key, value = (
        random(3, 2, group, head_dim),
        random(3, 2, head_dim),
        random(3, 2, head_dim),
    )
    keys, values = random(4, 2, 300, head_dim), random(4, 2, 300, head_dim)
    slots, lengths = [3, 0, 2], [1, 300, 129]
    expected = []
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        seen = torch.cat((keys[slot, :, : length - 1], key[row, :, None]), dim=1)
        read = torch.cat((values[slot, :, : length - 1], value[row, :, None]), dim=1)
        expected.append((query[row] @ seen.transpose(1, 2) * 0.2).softmax(dim=-1) @ read)
    found = decode(
        query,
        key,
        value,
        keys,
        values,
        slots=torch.tensor(slots),
        lengths=torch.tensor(lengths),
        scale=0.2,
    )
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("which", ["torch", "compiled"])
def test_a_kernel_stores_the_new_key_and_value_where_the_slot_ends(which):
    decode = kernels(8, 1)[which == "compiled"]
    keys, values = torch.zeros(2, 1, 4, 8), torch.zeros(2, 1, 4, 8)
    decode(
        torch.zeros(1, 1, 1, 8),
        torch.full((1, 1, 8), 2.0),
        torch.full((1, 1, 8), 3.0),
        keys,
        values,
        slots=torch.tensor([1]),
        lengths=torch.tensor([3]),
        scale=1.0,
    )
    assert (keys[1, 0, 2] == 2.0).all()
    assert (values[1, 0, 2] == 3.0).all()
    assert keys.sum() == 16.0


def test_the_cache_keeps_what_it_holds_when_it_grows():
    cache = KeyValueCache(layers=1, slots=2, kv_heads=1, max_context=5000, head_dim=4)
    cache.keys[0][1, 0, :3] = 7.0
    cache.reserve(1500)
    assert cache.keys[0].shape[2] == 2048
    assert (cache.keys[0][1, 0, :3] == 7.0).all()
    cache.reserve(5000)
    assert cache.values[0].shape[2] == 5000
