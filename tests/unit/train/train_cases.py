"""Small random models and made-up sessions."""

from __future__ import annotations

import copy
import os

import numpy as np
import torch
from torch import nn
from transformers import (
    FalconH1Config,
    FalconH1ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from polar.types import (
    BuildReport,
    CallId,
    Completed,
    EvaluatorSpec,
    Grade,
    Group,
    Outcome,
    SessionId,
    Task,
    TaskId,
    Trace,
    Trajectory,
)

DEVICE = os.environ.get("POLAR_TEST_DEVICE", "cpu")
"""Where the models are: `scripts/gpu_check.sh` runs some of these tests on a GPU."""

VOCABULARY = 97
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}


def make_model(family: str = "llama", **changes) -> PreTrainedModel:
    torch.manual_seed(0)
    return _make(family, **changes).eval().to(DEVICE)


def _make(family: str, **changes) -> PreTrainedModel:
    shape = SHAPE | changes
    match family:
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True))
        case "experts":
            model = _make("llama", **changes)
            model.model.layers[1].mlp = Experts(model.model.layers[1].mlp)
            return model
        case "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=False))
        case "gemma3":
            layers = ["sliding_attention", "full_attention", "sliding_attention"]
            config = Gemma3TextConfig(**shape, sliding_window=7, layer_types=layers)
            return Gemma3ForCausalLM(config)
        case "gemma2":
            return Gemma2ForCausalLM(Gemma2Config(**shape, sliding_window=7))
        case "qwen3_5":
            heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
            sizes = {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
            layers = ["linear_attention", "full_attention", "linear_attention"]
            config = Qwen3_5TextConfig(**shape, **heads, **sizes, layer_types=layers)
            return Qwen3_5ForCausalLM(config)
        case "mamba":
            size = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
            return MambaForCausalLM(MambaConfig(**size, state_size=8))
        case "falcon_h1":
            sizes = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
            return FalconH1ForCausalLM(FalconH1Config(**shape, **sizes, mamba_chunk_size=8))
    raise AssertionError(family)


class Experts(nn.Module):
    """Two of them, of which each token goes through one; few tokens leave one without any."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.first, self.second = mlp, copy.deepcopy(mlp)
        for parameter in self.second.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x):
        found, choice = torch.zeros_like(x), x[..., 0] > 0
        for rows, expert in ((choice, self.first), (~choice, self.second)):
            if rows.any():
                found[rows] = expert(x[rows])
        return found


def make_trace(tokens, trained, *, logprob: float = -4.5, version: int = 0) -> Trace:
    """Make a trace that trains the tokens whose positions are in `trained`."""
    mask = np.zeros(len(tokens), bool)
    mask[list(trained)] = True
    return Trace(
        token_ids=np.asarray(tokens, np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, logprob, 0.0).astype(np.float32),
        weight_versions=np.where(mask, version, -1).astype(np.int32),
        call_ids=(CallId(f"call {tokens}"),),
        call_indices=(0,),
        call_tokens=(int(mask.sum()),),
    )


def make_trajectory(*traces: Trace, reward: float = 0.0, outcome: Outcome | None = None):
    sampled = sum(int(t.loss_mask.sum()) for t in traces)
    return Trajectory(
        session_id=SessionId("s"),
        task_id=TaskId("t"),
        group_id="g",
        traces=traces,
        reward=reward,
        outcome=outcome or Completed(Grade(reward, reward > 0), 0),
        report=BuildReport(sampled, sampled, {}, {}, 0, 0, 0),
    )


def make_group(*trajectories: Trajectory) -> Group:
    return Group("g", Task(TaskId("t"), "do it", EvaluatorSpec("files")), trajectories)


def branching_traces() -> list[Trace]:
    """Make two groups with a common system prefix: turns, a fork, a repeat, a shared sample."""
    rng = np.random.default_rng(3)

    def some(count: int) -> list[int]:
        return rng.integers(3, VOCABULARY, count).tolist()

    system, first, second = some(6), some(9), some(4)
    reply, tool = some(5), some(3)
    base = system + first
    forked = base + reply[:2] + some(6)
    return [
        make_trace(base + reply + tool + some(7), [*range(15, 20), *range(23, 30)], logprob=-4.4),
        make_trace(base + reply + tool + some(2), [23, 24], logprob=-4.6),
        make_trace(forked, range(15, 23), logprob=-4.7),
        make_trace(forked, range(15, 23), logprob=-4.3),
        make_trace(system + second + some(5), range(10, 15)),
        make_trace(some(12), range(4, 12)),
        make_trace(base + reply[:1], [15]),
    ]
