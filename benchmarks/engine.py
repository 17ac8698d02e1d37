"""Tokens per second of the embedded engine, of transformers' `generate` and of a vLLM server.

    python benchmarks/engine.py MODEL [--vllm-url URL] [--json OUT.json]

Each engine gets the same prompts of random tokens: first ones that it has not seen, then the same
again, as a later turn of a conversation would find them (`generate` has no cache between calls).
Every request samples the same number of tokens at temperature 1. The engines take turns, one after
the other in one run, and what is reported is each one's best of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from polar.engines.base import Engine, SampleRequest
from polar.engines.embedded import EmbeddedEngine, EmbeddedSettings
from polar.engines.settings import VllmSettings
from polar.engines.vllm import VllmEngine
from polar.types import Sampling


@dataclass(frozen=True)
class Measured:
    engine: str
    requests: int
    fresh_tokens_per_s: float
    """Prompts computed too."""
    cached_tokens_per_s: float | None
    """The same prompts again."""


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    chooser = random.Random(seed)
    return [[chooser.randrange(1_000, 30_000) for _ in range(length)] for _ in range(count)]


async def sample_all(engine: Engine, requests: Sequence[list[int]], tokens: int) -> float:
    """Sample all at once; return tokens per second."""

    async def one(prompt: list[int]) -> int:
        request = SampleRequest(prompt, Sampling(max_tokens=tokens))
        return sum([len(chunk.token_ids) async for chunk in engine.sample(request)])

    started = time.perf_counter()
    counts = await asyncio.gather(*map(one, requests))
    return sum(counts) / (time.perf_counter() - started)


async def measure_engine(
    name: str, engine: Engine, requests: Sequence[list[int]], tokens: int
) -> Measured:
    fresh = await sample_all(engine, requests, tokens)
    cached = await sample_all(engine, requests, tokens)
    return Measured(name, len(requests), fresh, cached)


def measure_generate(
    model: torch.nn.Module, requests: Sequence[list[int]], tokens: int
) -> Measured:
    config = GenerationConfig(
        max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True, top_k=0, pad_token_id=0
    )
    ids = torch.tensor(requests)
    started = time.perf_counter()
    with torch.inference_mode():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    sampled = len(requests) * (found.shape[1] - ids.shape[1])
    name = "transformers generate"
    return Measured(name, len(requests), sampled / (time.perf_counter() - started), None)


def best(rounds: Sequence[Measured]) -> list[Measured]:
    """Keep each engine's best of every figure: on a shared machine all else is noise."""
    table: dict[tuple[str, int], Measured] = {}
    for found in rounds:
        key = (found.engine, found.requests)
        known = table.get(key, found)
        cached = [c for c in (known.cached_tokens_per_s, found.cached_tokens_per_s) if c]
        table[key] = Measured(
            *key,
            max(known.fresh_tokens_per_s, found.fresh_tokens_per_s),
            max(cached) if cached else None,
        )
    return list(table.values())


def table(found: Sequence[Measured]) -> str:
    """Lay the figures out, with ratios to the first engine of each count."""
    lines = [
        f"{'engine':<24}{'requests':>9}{'fresh tok/s':>13}{'ratio':>7}"
        f"{'cached tok/s':>14}{'ratio':>7}"
    ]
    for entry in found:
        base = next(each for each in found if each.requests == entry.requests)
        line = f"{entry.engine:<24}{entry.requests:>9}{entry.fresh_tokens_per_s:>13.1f}"
        line += f"{entry.fresh_tokens_per_s / base.fresh_tokens_per_s:>7.2f}"
        if entry.cached_tokens_per_s and base.cached_tokens_per_s:
            line += f"{entry.cached_tokens_per_s:>14.1f}"
            line += f"{entry.cached_tokens_per_s / base.cached_tokens_per_s:>7.2f}"
        lines.append(line)
    return "\n".join(lines)


async def run(arguments: argparse.Namespace) -> list[Measured]:
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    engines: dict[str, Engine] = {
        f"embedded {dtype}": EmbeddedEngine(model, EmbeddedSettings(dtype=dtype))
        for dtype in arguments.dtypes
    }
    if arguments.vllm_url:
        engines["vllm"] = VllmEngine(VllmSettings(urls=(arguments.vllm_url,)))
    for engine in engines.values():
        await engine.probe()
        await sample_all(engine, prompts(1, 64, seed=-1), 8)
    rounds: list[Measured] = []
    for turn in range(arguments.rounds):
        for count in arguments.requests:
            asked = prompts(count, arguments.prompt_tokens, seed=1_000 * turn + count)
            for name, engine in engines.items():
                rounds.append(await measure_engine(name, engine, asked, arguments.tokens))
            if arguments.generate:
                rounds.append(measure_generate(model, asked, arguments.tokens))
            print(table(rounds[-len(engines) - arguments.generate :]), flush=True)
    for engine in engines.values():
        await engine.aclose()
    return best(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("--vllm-url", help="address of a vLLM server with the same model")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt-tokens", type=int, default=900)
    parser.add_argument("--tokens", type=int, default=100, help="sampled by each request")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["float32"], metavar="DTYPE")
    parser.add_argument("--no-generate", dest="generate", action="store_false")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    found = asyncio.run(run(arguments))
    print(f"\nbest of {arguments.rounds} rounds\n{table(found)}")
    if arguments.json:
        about = {
            "machine": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "prompt_tokens": arguments.prompt_tokens,
            "tokens": arguments.tokens,
        }
        figures = {"about": about, "figures": [asdict(entry) for entry in found]}
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
