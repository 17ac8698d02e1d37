"""Train on one group of recorded sessions in three forms, and compare what it costs.

    python benchmarks/ablation.py MODEL                         mini-swe-agent, all three forms
    python benchmarks/ablation.py MODEL --harness claude_code --per-request-sessions 0
    python benchmarks/ablation.py MODEL --harness qwen_code --count-only

Records 8 sessions of 21 calls of a real harness with its own prompt (see recording.py) and computes
the gradient of one optimizer step from them: GRPO's loss over every token that was sampled.

- `per_request`: a sequence a call; each call computes its whole history again.
- `prefix_merging`: a sequence a session, for these sessions only append.
- `tree`: what the sequences of the group share is computed once.

Sequences are computed one at a time by the plain model (SDPA), with logits of sampled tokens only.
The model is a cut of the one given, for two cores: its lowest `--layers` layers, and of its
vocabulary what occurs in the sessions. `--layers 0` takes it whole.

Prints a JSON object for the recording and one a form. Where only some sessions are computed
(`--per-request-sessions`, 0 for none), times are scaled to all of them, and gradients are not
compared.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from recording import Recording, installed, record
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from polar.rendering import load_renderer
from polar.train.attention import ATTENTION_NAME
from polar.train.lessons import Lesson, group_lessons
from polar.train.loss import Samples, policy_loss
from polar.train.memory import reusing_memory
from polar.train.policy import Policy
from polar.train.settings import TrainSettings
from polar.train.tree_batch import Indices, TreeBatch, plan_batches
from polar.trajectory import BuilderName, TokenTree, build, check
from polar.types import Group

SETTINGS = TrainSettings(correction="none", max_trace_tokens=1_000_000)
"""Without a correction for the engine, whose scripted logprobs are all 0."""


@dataclass(frozen=True, slots=True)
class Form:
    """The data of the group in one form."""

    name: str
    lessons: list[Lesson]
    computed: int
    """Tokens that go through the model."""
    passes: int
    """Forward and backward passes."""
    share: float = 1.0
    """Which part of the sessions is measured."""


def group_of(recording: Recording, builder: BuilderName) -> Group:
    """Build the group's traces, and check them token by token."""
    trajectories = []
    for trajectory in recording.group.trajectories:
        calls = recording.calls[trajectory.session_id]
        built = build(calls, builder=builder)
        check(calls, built)
        trajectories.append(replace(trajectory, traces=built.traces, report=built.report))
    return replace(recording.group, trajectories=tuple(trajectories))


def forms_of(recording: Recording, options: argparse.Namespace) -> list[Form]:
    merged = group_lessons([group_of(recording, "prefix_merging")], SETTINGS)
    apart = group_lessons([group_of(recording, "per_request")], SETTINGS)
    batches, _ = plan_batches(
        [lesson.trace for lesson in merged],
        max_tokens=options.tree_tokens,
        max_trace_tokens=SETTINGS.max_trace_tokens,
    )
    nodes = sum(batch.token_ids.size for batch in batches)
    share = min(1.0, options.per_request_sessions / options.sessions)
    return [
        Form("per_request", apart, _size(apart), len(apart), share),
        Form("prefix_merging", merged, _size(merged), len(merged)),
        Form("tree", merged, nodes, len(batches)),
    ]


def separate_pass(model: PreTrainedModel, form: Form, _: argparse.Namespace) -> None:
    """Compute one sequence after the other."""
    for lesson in form.lessons[: round(form.share * len(form.lessons))]:
        trace = lesson.trace
        ids = torch.from_numpy(trace.token_ids).long()[None]
        at = torch.from_numpy(np.flatnonzero(trace.loss_mask))
        logits = model(input_ids=ids, logits_to_keep=at - 1, use_cache=False).logits[0]
        logprobs = -torch.nn.functional.cross_entropy(logits, ids[0, at], reduction="none")
        one, ones = torch.zeros_like(at), torch.ones_like(logprobs)
        advantages = torch.from_numpy(lesson.advantages)[at]
        _loss(logprobs, one, advantages, ones * lesson.weight).backward()


def tree_pass(model: PreTrainedModel, form: Form, options: argparse.Namespace) -> None:
    """Compute the group as a prefix tree."""
    batches, _ = plan_batches(
        [lesson.trace for lesson in form.lessons],
        max_tokens=options.tree_tokens,
        max_trace_tokens=SETTINGS.max_trace_tokens,
    )
    advantages = torch.tensor([float(lesson.advantages[0]) for lesson in form.lessons])
    weights = torch.tensor([lesson.weight for lesson in form.lessons])
    for batch in batches:

        def loss_of(
            samples: Indices, logprobs: Tensor, _: Tensor, batch: TreeBatch = batch
        ) -> Tensor:
            traces = torch.from_numpy(batch.sample_traces[samples])
            return _loss(logprobs, traces, advantages[traces], weights[traces])

        Policy(model).learn(batch, loss_of)


def _loss(logprobs: Tensor, traces: Tensor, advantages: Tensor, weights: Tensor) -> Tensor:
    nothing = torch.zeros_like(logprobs)
    samples = Samples(
        logprobs=logprobs,
        old_logprobs=logprobs.detach(),
        engine_logprobs=nothing,
        advantages=advantages,
        weights=weights,
        traces=traces,
        entropies=nothing,
    )
    return policy_loss(samples, SETTINGS).loss


@reusing_memory()
def measure(
    model: PreTrainedModel, form: Form, options: argparse.Namespace
) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Time one form and return its row and its gradient."""
    one_pass: Callable[[PreTrainedModel, Form, argparse.Namespace], None] = separate_pass
    if form.name == "tree":
        model, one_pass = copy.deepcopy(model), tree_pass
        model.set_attn_implementation(ATTENTION_NAME)
    model.zero_grad(set_to_none=True)
    wall, cpu = time.perf_counter(), time.process_time()
    one_pass(model, form, options)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    row = {
        "form": form.name,
        "sequences": len(form.lessons),
        "passes": form.passes,
        "computed_tokens": form.computed,
        "trained_tokens": sum(int(lesson.trace.loss_mask.sum()) for lesson in form.lessons),
        "wall_s": round(wall / form.share, 2),
        "cpu_s": round(cpu / form.share, 2),
        "measured_share": round(form.share, 3),
    }
    return row, {name: p.grad.clone() for name, p in model.named_parameters()}


def cut_model(path: str, layers: int, used: np.ndarray) -> PreTrainedModel:
    """Load the lowest layers, and the rows of the vocabulary that are used."""
    if not layers:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, num_hidden_layers=layers
    )
    rows = model.get_input_embeddings().weight.detach()[torch.from_numpy(used).long()].clone()
    model.resize_token_embeddings(len(used))
    model.get_input_embeddings().weight.data.copy_(rows)
    model.get_output_embeddings().weight.data.copy_(rows)
    return model


def renumbered(form: Form, used: np.ndarray) -> Form:
    """Give tokens their numbers in the cut vocabulary; equal ones stay equal."""

    def one(lesson: Lesson) -> Lesson:
        ids = np.searchsorted(used, lesson.trace.token_ids).astype(np.int32)
        return replace(lesson, trace=replace(lesson.trace, token_ids=ids))

    return replace(form, lessons=[one(lesson) for lesson in form.lessons])


def describe(recording: Recording, forms: Sequence[Form]) -> dict[str, object]:
    calls = [call for calls in recording.calls.values() for call in calls]
    group = recording.group
    return {
        "sessions": len(group.trajectories),
        "passed": sum(trajectory.reward == 1.0 for trajectory in group.trajectories),
        "calls": len(calls),
        "first_prompt": min(len(call.prompt_ids) for call in calls),
        "sampled": sum(len(call.sampled_ids) for call in calls),
        "unique_tokens": TokenTree(calls).size,
        **{form.name: form.computed for form in forms},
        "per_request / prefix_merging": round(forms[0].computed / forms[1].computed, 2),
        "prefix_merging / tree": round(forms[1].computed / forms[2].computed, 2),
    }


def compare(forms: Sequence[Form], options: argparse.Namespace) -> None:
    """Measure every form; times and gradients beside those of the form before."""
    used = np.unique(np.concatenate([lesson.trace.token_ids for lesson in forms[1].lessons]))
    model = cut_model(options.model, options.layers, used)
    before: tuple[dict[str, object], dict[str, Tensor]] | None = None
    for form in (form for form in forms if form.share):
        row, gradient = measure(model, renumbered(form, used) if options.layers else form, options)
        if before is not None:
            row["faster"] = round(before[0]["wall_s"] / row["wall_s"], 2)
            row["faster_cpu"] = round(before[0]["cpu_s"] / row["cpu_s"], 2)
            if before[0]["measured_share"] == 1.0:
                row["gradient_relative_error"] = _relative_error(gradient, before[1])
        print(json.dumps(row), flush=True)
        before = row, gradient


def _relative_error(gradient: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    pairs = [(gradient[name].double(), wanted.double()) for name, wanted in reference.items()]
    difference = sum(float((found - wanted).square().sum()) for found, wanted in pairs)
    return (difference / sum(float(wanted.square().sum()) for _, wanted in pairs)) ** 0.5


def _size(lessons: Sequence[Lesson]) -> int:
    return sum(lesson.trace.token_ids.size for lesson in lessons)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a folder or hub id of a causal language model")
    parser.add_argument("--harness", default="mini_swe_agent")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--per-request-sessions", type=int, default=8)
    parser.add_argument("--tree-tokens", type=int, default=32_768, help="most nodes of a pass")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--count-only", action="store_true", help="compute no gradient")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()  # a cut model leaves weights out
    harness = installed(options.harness)
    with tempfile.TemporaryDirectory() as folder:
        recording = asyncio.run(
            record(
                Path(folder),
                harness,
                load_renderer(options.model),
                sessions=options.sessions,
                turns=options.turns,
            )
        )
    forms = forms_of(recording, options)
    print(json.dumps({"harness": options.harness, **describe(recording, forms)}), flush=True)
    if not options.count_only:
        compare(forms, options)


if __name__ == "__main__":
    main()
