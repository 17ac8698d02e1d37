"""Probes an engine's server for `polar doctor`: token ids, logprobs, tokenizer agreement."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx

from polar import engines, models
from polar.cli.findings import Finding
from polar.config.families import settings_model
from polar.engines.base import Capabilities
from polar.errors import ConfigError, PolarError
from polar.rendering.tokenizer import encode, load_tokenizer

__all__ = ["check_engine"]

_TIMEOUT_S = 120.0
_PROBE_TEXT = "<|im_start|>user\nNaïve café: 12345 + 6 = `x`?\n\tdef f(): pass  # 東京 🙂<|im_end|>"
"""Words, digits, white space, other scripts and what may be a special token."""


def check_engine(name: str, url: str, *, model: str, cache: Path) -> Iterator[Finding]:
    """Sample a token from an engine, and tokenize a text with it and with the model's tokenizer.

    Args:
        name: A name of the engines family.
        url: Address of its server.
        model: Model whose tokenizer must agree with the engine's.
        cache: Polar's folder of converted models.
    """
    subject = f"engine {name}"
    try:
        found = asyncio.run(_probe(name, url))
    except TimeoutError:
        fix = "See whether the server is still loading, or busy."
        yield Finding(subject, "fail", f"{url} did not sample a token in {_TIMEOUT_S:.0f} s", fix)
        return
    except PolarError as error:
        yield Finding(subject, "fail", error.finding, error.fix)
        return
    yield Finding(subject, "ok", f"{found.detail or found.model}, {found.max_context} tokens")
    yield from _abilities(subject, found)
    yield _tokenizer(url, found.model, model, cache)


async def _probe(name: str, url: str) -> Capabilities:
    declared = settings_model("engine", name)
    if "urls" not in declared.model_fields:
        raise ConfigError(
            f"the engine {name} has no address",
            where="--engine",
            fix="Name one with a server: vllm.",
        )
    engine = engines.load(name)(declared.model_validate({"urls": (url,)}))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await engine.probe()
    finally:
        await engine.aclose()


def _abilities(subject: str, found: Capabilities) -> Iterator[Finding]:
    needed = "Without it nothing can be trained on; start the server as docs/engines.md says."
    for what, there in (("token ids", found.token_ids), ("logprobs", found.logprobs)):
        yield Finding(
            f"{subject}, {what}",
            "ok" if there else "fail",
            "returned for sampled tokens" if there else "not returned",
            None if there else needed,
        )
    yield Finding(
        f"{subject}, weights",
        "ok" if found.weight_updates else "warn",
        "can be updated" if found.weight_updates else "cannot be updated",
        None if found.weight_updates else "Rollouts work; training needs weight updates.",
    )


def _tokenizer(url: str, served: str, model: str, cache: Path) -> Finding:
    subject = "tokenizer agreement"
    try:
        ours = encode(load_tokenizer(str(models.resolve(model, cache=cache))), _PROBE_TEXT)
    except PolarError as error:
        return Finding(subject, "warn", error.what, error.fix)
    body = {"model": served, "prompt": _PROBE_TEXT, "add_special_tokens": False}
    try:
        answer = httpx.post(f"{url.rstrip('/')}/tokenize", json=body, timeout=30.0)
        theirs = answer.raise_for_status().json()["tokens"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        found = f"the server cannot be asked to tokenize: {error}"
        return Finding(subject, "warn", found, "Make sure that it serves the model you name.")
    if theirs == ours:
        return Finding(subject, "ok", f"{model} and the engine give the same {len(ours)} ids")
    return Finding(
        subject,
        "fail",
        f"{model} and the engine tokenize the same text differently",
        f"Name the model that is served ({served}) with --model.",
    )
