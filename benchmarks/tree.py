"""Time one training pass over a group as a prefix tree against separate sequences.

    python benchmarks/tree.py MODEL                  one group: 8 replies of 150, prompt of 900
    python benchmarks/tree.py MODEL --sweep          prefix lengths and group sizes
    python benchmarks/tree.py MODEL --dtype bfloat16

Separate sequences are what a trainer without sharing does: the plain model (SDPA), one sequence at
a time, logits of the reply only, the same loss. Each way runs in a fresh process, so that peak
memory is its own. Prints one JSON object a comparison: seconds are the best of `--repeat` passes;
on a machine that others use too, compare the CPU seconds of `--threads 1`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from polar.train.attention import ATTENTION_NAME
from polar.train.memory import reusing_memory
from polar.train.policy import Policy
from polar.train.recompute import Keep
from polar.train.tree_batch import build_tree
from polar.types import Trace


def make_traces(model: str, prompt: int, reply: int, sessions: int) -> list[Trace]:
    """Cut a prompt and replies out of this project's pages: gradients of random ids are chaotic."""
    pages = sorted(Path(__file__).parents[1].glob("docs/**/*.md"))
    text = "\n".join(page.read_text() for page in pages)
    ids = np.resize(AutoTokenizer.from_pretrained(model)(text)["input_ids"], 100_000)
    traces = []
    for k in range(sessions):
        start = prompt + k * reply
        tokens = np.concatenate([ids[:prompt], ids[start : start + reply]]).astype(np.int32)
        mask = np.arange(tokens.size) >= prompt
        zeros = np.zeros(tokens.size, np.float32)
        traces.append(Trace(tokens, mask, zeros, zeros.astype(np.int32), ()))
    return traces


def separate_pass(model: PreTrainedModel, traces: list[Trace]) -> float:
    total = sum(int(t.loss_mask.sum()) for t in traces)
    loss_sum = 0.0
    for trace in traces:
        ids = torch.from_numpy(trace.token_ids).long()[None]
        at = torch.from_numpy(np.flatnonzero(trace.loss_mask))
        logits = model(input_ids=ids, logits_to_keep=at - 1, use_cache=False).logits[0].float()
        loss = torch.nn.functional.cross_entropy(logits, ids[0, at], reduction="sum") / total
        loss.backward()
        loss_sum += float(loss.detach())
    return loss_sum


def tree_pass(model: PreTrainedModel, traces: list[Trace], keep: Keep, piece: int) -> float:
    policy = Policy(model, keep=keep, piece_tokens=piece)
    total = sum(int(t.loss_mask.sum()) for t in traces)
    logprobs, _ = policy.learn(build_tree(traces), lambda _, values, __: -values.sum() / total)
    return -float(logprobs.mean())


@reusing_memory()
def measure(
    way: str, options: argparse.Namespace, shape: tuple[int, int, int], folder: str
) -> None:
    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype))
    if way == "tree":
        model.set_attn_implementation(ATTENTION_NAME)
    one_pass = (
        partial(tree_pass, keep=options.keep, piece=options.piece)
        if way == "tree"
        else separate_pass
    )
    traces = make_traces(options.model, *shape)
    walls, cpus = [], []
    for _ in range(options.repeat):
        model.zero_grad(set_to_none=False)
        wall, cpu = time.perf_counter(), time.process_time()
        loss = one_pass(model, traces)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    gradients = {name: p.grad for name, p in model.named_parameters()}
    torch.save(
        {
            "loss": loss,
            "wall_s": min(walls),
            "cpu_s": min(cpus),
            "peak_mb": peak_mb,
            "gradients": gradients,
        },
        Path(folder) / f"{way}.pt",
    )


def compare(options: argparse.Namespace, shape: tuple[int, int, int]) -> dict[str, object]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in ("separate", "tree"):
            process = multiprocessing.get_context("spawn").Process(
                target=measure, args=(way, options, shape, folder)
            )
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"{way} failed")
            found[way] = torch.load(Path(folder) / f"{way}.pt")
    separate, tree = found["separate"], found["tree"]
    difference = sum(
        float((tree["gradients"][n].double() - g.double()).square().sum())
        for n, g in separate["gradients"].items()
    )
    size = sum(float(g.double().square().sum()) for g in separate["gradients"].values())
    prompt, reply, sessions = shape
    return {
        "prompt": prompt,
        "reply": reply,
        "sessions": sessions,
        "dtype": options.dtype,
        "threads": options.threads,
        "token_ratio": round(sessions * (prompt + reply) / (prompt + sessions * reply), 2),
        "speedup": round(separate["wall_s"] / tree["wall_s"], 2),
        "speedup_cpu": round(separate["cpu_s"] / tree["cpu_s"], 2),
        "separate_s": round(separate["wall_s"], 2),
        "tree_s": round(tree["wall_s"], 2),
        "separate_cpu_s": round(separate["cpu_s"], 2),
        "tree_cpu_s": round(tree["cpu_s"], 2),
        "tree_tokens_per_s": round((prompt + sessions * reply) / tree["wall_s"]),
        "loss_difference": abs(tree["loss"] - separate["loss"]),
        "gradient_relative_error": (difference / size) ** 0.5,
        "separate_peak_mb": round(separate["peak_mb"]),
        "tree_peak_mb": round(tree["peak_mb"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a folder or hub id of a causal language model")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--keep", default="products", choices=["everything", "products", "inputs"])
    parser.add_argument("--piece", type=int, default=512)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=900)
    parser.add_argument("--reply", type=int, default=150)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    shapes = [(options.prompt, options.reply, options.sessions)]
    if options.sweep:
        shapes = [(p, options.reply, n) for p in (50, 150, 450, 900, 1800) for n in (2, 4, 8, 16)]
    for shape in shapes:
        print(json.dumps(compare(options, shape)), flush=True)


if __name__ == "__main__":
    main()
