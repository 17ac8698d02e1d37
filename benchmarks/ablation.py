"""Train on one group of recorded sessions in three forms, and compare what it costs.

    python benchmarks/ablation.py MODEL                         mini-swe-agent, all three forms
    python benchmarks/ablation.py MODEL --harness claude_code --per-request-sessions 0
    python benchmarks/ablation.py MODEL --harness claude_code --at-work --layers 1 \\
        --per-request-sessions 0 --merged-sessions 2        with all its tools, as people use it
    python benchmarks/ablation.py MODEL --harness claude_code --random 1.5b --layers 1 \\
        --per-request-sessions 0                            a wider model, of random weights
    python benchmarks/ablation.py MODEL --harness qwen_code --count-only

Records 8 sessions of 21 calls of a real harness with its own prompt (see recording.py) and computes
the gradient of one optimizer step from them: GRPO's loss over every token that was sampled.

- `per_request`: a sequence a call; each call computes its whole history again.
- `prefix_merging`: a sequence a session, for these sessions only append.
- `tree`: what the sequences of the group share is computed once.

Sequences are computed one at a time by the plain model (SDPA), with logits of sampled tokens only.
The model is a cut of the one given, for two cores: its lowest `--layers` layers, and of its
vocabulary what occurs in the sessions. `--layers 0` takes it whole. With `--random` the model gives
the tokens only, and what is trained is as large as the name says.

Prints a JSON object for the recording and one a form: beside the times stand the operations that
the form asks for, so `fewer_operations` is what `faster_cpu` should be. Where only some sessions
are computed (`--per-request-sessions`, `--merged-sessions`; 0 for none), times are scaled to all of
them, and gradients are not compared. With `--repeat` the forms take turns, and each one's least
time counts: on a machine that others use too, compare the CPU seconds of `--threads 1`.
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
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging
from tree import RANDOM, random_model

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
    pairs: int
    """Pairs of tokens of which the later attends to the earlier, or to itself."""
    predictions: int
    """Positions whose logits are computed."""
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
    tree = Form(
        "tree",
        merged,
        computed=sum(batch.token_ids.size for batch in batches),
        passes=len(batches),
        pairs=sum(_pairs(batch.position_ids) for batch in batches),
        predictions=sum(batch.logit_nodes.size for batch in batches),
    )
    return [
        _separate("per_request", apart, options.per_request_sessions / options.sessions),
        _separate("prefix_merging", merged, options.merged_sessions / options.sessions),
        tree,
    ]


def _separate(name: str, lessons: list[Lesson], share: float) -> Form:
    sizes = [lesson.trace.token_ids.size for lesson in lessons]
    pairs = sum(_pairs(np.arange(size)) for size in sizes)
    predictions = sum(int(lesson.trace.loss_mask.sum()) for lesson in lessons)
    return Form(name, lessons, sum(sizes), len(lessons), pairs, predictions, min(1.0, share))


def _pairs(positions: np.ndarray) -> int:
    return int((positions.astype(np.int64) + 1).sum())


def operations(model: PreTrainedModel, form: Form) -> int:
    """Count the operations of products, forward and backward, that a form asks for.

    Of a layer's weights one product forward and two backward; of attention two forward and five
    backward, for no kernel keeps the scores.
    """
    config = model.config.get_text_config()
    weights = sum(m.weight.numel() for m in model.base_model.modules() if isinstance(m, nn.Linear))
    head = model.get_output_embeddings().weight.numel()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = config.num_hidden_layers * config.num_attention_heads * size
    linear = 3 * (weights * form.computed + head * form.predictions)
    return 2 * (linear + 7 * attention * form.pairs)


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
        "tera_operations": round(operations(model, form) / 1e12, 4),
        "wall_s": round(wall / form.share, 2),
        "cpu_s": round(cpu / form.share, 2),
        "measured_share": round(form.share, 3),
    }
    return row, {name: p.grad.clone() for name, p in model.named_parameters()}


def make_model(options: argparse.Namespace, used: np.ndarray) -> PreTrainedModel:
    """Load the lowest layers, and the rows of the vocabulary that are used; or make them up."""
    if options.random:
        layers, vocabulary = options.layers or None, len(used) if options.layers else None
        return random_model(options.random, layers=layers, vocabulary=vocabulary)
    path = options.model
    if not options.layers:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, num_hidden_layers=options.layers
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
    model = make_model(options, used)
    if options.layers:
        forms = [renumbered(form, used) for form in forms]
    forms = [form for form in forms if form.share]
    rounds = [[measure(model, form, options) for form in forms] for _ in range(options.repeat)]
    rows = [_least([row for row, _ in measured]) for measured in zip(*rounds, strict=True)]
    for index, row in enumerate(rows):
        if index:
            before, gradients = rows[index - 1], [gradient for _, gradient in rounds[0]]
            row["faster"] = round(before["wall_s"] / row["wall_s"], 2)
            row["faster_cpu"] = round(before["cpu_s"] / row["cpu_s"], 2)
            row["fewer_operations"] = round(before["tera_operations"] / row["tera_operations"], 2)
            if before["measured_share"] == 1.0:
                error = _relative_error(gradients[index], gradients[index - 1])
                row["gradient_relative_error"] = error
        print(json.dumps(row), flush=True)


def _least(rows: Sequence[dict[str, object]]) -> dict[str, object]:
    return rows[0] | {name: min(row[name] for row in rows) for name in ("wall_s", "cpu_s")}


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
    parser.add_argument("--merged-sessions", type=int, default=8)
    parser.add_argument("--random", choices=RANDOM, help="train a random model of this size")
    parser.add_argument("--at-work", action="store_true", help="the harness as people use it")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--tree-tokens", type=int, help="most nodes of a tree; absent: any number")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--count-only", action="store_true", help="compute no gradient")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()  # a cut model leaves weights out
    harness = installed(options.harness, at_work=options.at_work)
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
