"""Time one training pass over a group as a prefix tree against separate sequences.

    python benchmarks/tree.py MODEL                  one group: 8 replies of 150, prompt of 900
    python benchmarks/tree.py MODEL --sweep          prefix lengths and group sizes
    python benchmarks/tree.py MODEL --dtype bfloat16
    python benchmarks/tree.py --random 0.5b --device cuda --prompt 16000 --dtype bfloat16

Separate sequences are what a trainer without sharing does: the plain model (SDPA), one sequence at
a time, logits of the reply only, the same loss. Each way runs in a fresh process, so that peak
memory is its own: resident memory on a CPU, allocated tensors on a GPU. Prints one JSON object a
comparison: seconds are the best of `--repeat` passes; on a machine that others use too, compare the
CPU seconds of `--threads 1`. A sweep ends with the prefix from which on the tree is faster.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen3Config

from polar.train.attention import ATTENTION_NAME
from polar.train.kernels import choose_kernel
from polar.train.memory import reusing_memory
from polar.train.policy import Policy
from polar.train.tree_batch import build_tree
from polar.types import Trace

Shape = tuple[int, int, int]  # tokens of the prompt, tokens of a reply, sessions

SWEEP = [(prompt, 150, sessions) for prompt in (16, 50, 150, 450, 900) for sessions in (2, 4, 8)]

# Layers, hidden size, intermediate size, heads, key-value heads, head size, vocabulary.
RANDOM = {
    "tiny": (2, 64, 128, 4, 2, 16, 512),
    "0.5b": (24, 896, 4864, 14, 2, 64, 151_936),
    "1.5b": (28, 1536, 8960, 12, 2, 128, 151_936),
    "4b": (36, 2560, 9728, 32, 8, 128, 151_936),
}


def load_model(options: argparse.Namespace) -> PreTrainedModel:
    dtype = getattr(torch, options.dtype)
    if options.random is None:
        layers = {"num_hidden_layers": options.layers} if options.layers else {}
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, **layers)
        return model.to(options.device)
    return random_model(options.random, dtype=dtype, device=options.device)


def random_model(
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    layers: int | None = None,
    vocabulary: int | None = None,
) -> PreTrainedModel:
    """Make a random model in one of the shapes of `RANDOM`, or a part of it."""
    torch.manual_seed(0)
    all_layers, hidden, inner, heads, kv_heads, head, all_tokens = RANDOM[name]
    config = Qwen3Config(
        num_hidden_layers=layers or all_layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head,
        vocab_size=vocabulary or all_tokens,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def some_tokens(options: argparse.Namespace) -> np.ndarray:
    """Take this project's pages where there is a tokenizer: gradients of random ids are chaotic."""
    if options.random is not None:
        vocabulary = RANDOM[options.random][-1]
        return np.random.default_rng(0).integers(0, vocabulary, 100_000)
    pages = sorted(Path(__file__).parents[1].glob("docs/**/*.md"))
    text = "\n".join(page.read_text() for page in pages)
    return np.resize(AutoTokenizer.from_pretrained(options.model)(text)["input_ids"], 100_000)


def make_traces(ids: np.ndarray, shape: Shape) -> list[Trace]:
    prompt, reply, sessions = shape
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
        ids = torch.from_numpy(trace.token_ids).long().to(model.device)[None]
        at = torch.from_numpy(np.flatnonzero(trace.loss_mask)).to(model.device)
        logits = model(input_ids=ids, logits_to_keep=at - 1, use_cache=False).logits[0].float()
        loss = torch.nn.functional.cross_entropy(logits, ids[0, at], reduction="sum") / total
        loss.backward()
        loss_sum += float(loss.detach())
    return loss_sum


def tree_pass(model: PreTrainedModel, traces: list[Trace], *, policy: Policy) -> float:
    total = sum(int(t.loss_mask.sum()) for t in traces)
    logprobs, _ = policy.learn(build_tree(traces), lambda _, values, __: -values.sum() / total)
    return -float(logprobs.mean())


@reusing_memory()
def measure(way: str, options: argparse.Namespace, shapes: list[Shape], folder: str) -> None:
    """Time all shapes in this process; its peak memory and the gradients are the last shape's."""
    torch.set_num_threads(options.threads)
    model, ids = load_model(options), some_tokens(options)
    one_pass = separate_pass
    if way == "tree":
        model.set_attn_implementation(ATTENTION_NAME)
        kernel, reason = choose_kernel(model)
        print(f"attention by {kernel}{'' if reason is None else f': {reason}'}", file=sys.stderr)
        policy = Policy(model, keep=options.keep, piece_tokens=options.piece, kernel=kernel)
        one_pass = partial(tree_pass, policy=policy)
    found = [time_passes(one_pass, model, make_traces(ids, shape), options) for shape in shapes]
    gradients = {name: p.grad for name, p in model.named_parameters()} if len(found) == 1 else {}
    torch.save({"found": found, "gradients": gradients}, Path(folder) / f"{way}.pt")


def time_passes(one_pass, model, traces, options: argparse.Namespace) -> dict[str, float]:
    walls, cpus = [], []
    for _ in range(options.repeat):
        model.zero_grad(set_to_none=False)
        synchronize(options)
        wall, cpu = time.perf_counter(), time.process_time()
        loss = one_pass(model, traces)
        synchronize(options)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {"loss": loss, "wall_s": min(walls), "cpu_s": min(cpus), "peak_mb": peak_mb(options)}


def synchronize(options: argparse.Namespace) -> None:
    if options.device == "cuda":
        torch.cuda.synchronize()


def peak_mb(options: argparse.Namespace) -> float:
    if options.device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def both_ways(options: argparse.Namespace, shapes: list[Shape]) -> dict[str, dict]:
    with tempfile.TemporaryDirectory() as folder:
        for way in ("separate", "tree"):
            process = multiprocessing.get_context("spawn").Process(
                target=measure, args=(way, options, shapes, folder)
            )
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"{way} failed")
        return {
            way: torch.load(Path(folder) / f"{way}.pt", map_location="cpu")
            for way in ("separate", "tree")
        }


def compare(shape: Shape, separate: dict, tree: dict, options) -> dict[str, object]:
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
    }


def relative_error(found: dict, expected: dict) -> float:
    difference = sum(
        float((found[n].double() - g.double()).square().sum()) for n, g in expected.items()
    )
    return (difference / sum(float(g.double().square().sum()) for g in expected.values())) ** 0.5


def one_group(options: argparse.Namespace) -> None:
    shape = (options.prompt, options.reply, options.sessions)
    ways = both_ways(options, [shape])
    (separate,), (tree,) = ways["separate"]["found"], ways["tree"]["found"]
    error = relative_error(ways["tree"]["gradients"], ways["separate"]["gradients"])
    peaks = {
        "separate_peak_mb": round(separate["peak_mb"]),
        "tree_peak_mb": round(tree["peak_mb"]),
    }
    report = compare(shape, separate, tree, options) | {"gradient_relative_error": error} | peaks
    print(json.dumps(report), flush=True)
    if options.dtype == "float32" and error > 1e-4:
        raise SystemExit(f"the gradients differ by {error:.1e}, more than 1e-4")


def sweep(options: argparse.Namespace) -> None:
    ways = both_ways(options, SWEEP)
    pairs = zip(SWEEP, ways["separate"]["found"], ways["tree"]["found"], strict=True)
    rows = [compare(shape, separate, tree, options) for shape, separate, tree in pairs]
    for row in rows:
        print(json.dumps(row))
    print(json.dumps({"break_even_prompt": break_even(rows)}))
    if options.plot:
        plot(rows, options.plot)


def break_even(rows: list[dict]) -> dict[int, float | None]:
    """Interpolate the prompt from which on the tree takes fewer CPU seconds, by group size."""
    found = {}
    for sessions in sorted({r["sessions"] for r in rows}):
        mine = sorted((r["prompt"], r["speedup_cpu"]) for r in rows if r["sessions"] == sessions)
        above = [i for i, (_, gain) in enumerate(mine) if all(g >= 1 for _, g in mine[i:])]
        if not above:
            found[sessions] = None
        elif above[0] == 0:
            found[sessions] = mine[0][0]
        else:
            (p0, g0), (p1, g1) = mine[above[0] - 1 : above[0] + 1]
            found[sessions] = round(p0 + (1 - g0) / (g1 - g0) * (p1 - p0))
    return found


def plot(rows: list[dict], path: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), dpi=90)
    for color, sessions in zip(("C0", "C1", "C2"), (2, 4, 8), strict=True):
        mine = [r for r in rows if r["sessions"] == sessions]
        prompts = [r["prompt"] for r in mine]
        gains = [r["speedup_cpu"] for r in mine]
        axes.plot(prompts, gains, f"{color}o-", label=f"{sessions} sessions")
        axes.plot(prompts, [r["token_ratio"] for r in mine], f"{color}:", linewidth=1)
    axes.axhline(1, color="gray", linewidth=0.8)
    axes.set(xlabel="tokens of the shared prompt", ylabel="separate / tree, CPU seconds")
    axes.legend(frameon=False, title="replies of 150; dotted: by tokens")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a folder or hub id of a causal language model")
    parser.add_argument("--random", choices=RANDOM, help="a random model of this size instead")
    parser.add_argument("--layers", type=int, help="only the lowest layers of the model")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--keep", default="products", choices=["everything", "products", "inputs"])
    parser.add_argument("--piece", type=int, default=512)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=900)
    parser.add_argument("--reply", type=int, default=150)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--plot", help="where a sweep's picture goes")
    options = parser.parse_args()
    if (options.model is None) == (options.random is None):
        parser.error("give a model, or --random")
    sweep(options) if options.sweep else one_group(options)


if __name__ == "__main__":
    main()
