"""Probes an engine's server for `polar doctor`: token ids, logprobs, tokenizer agreement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from polar import engines, models
from polar.cli.findings import Finding
from polar.config.families import own_names, settings_model
from polar.engines.base import Capabilities
from polar.errors import ConfigError, EngineError, PolarError
from polar.rendering.tokenizer import encode, load_tokenizer

__all__ = ["check_engine"]

_TIMEOUT_S = 120.0
_PROBE_TEXT = "<|im_start|>user\nNaïve café: 12345 + 6 = `x`?\n\tdef f(): pass  # 東京 🙂<|im_end|>"
"""Words, digits, white space, other scripts and what may be a special token."""


def check_engine(name: str, urls: Sequence[str], *, model: str, cache: Path) -> Iterator[Finding]:
    """Sample a token from each server, and tokenize a text with it and with the model's tokenizer.

    Args:
        name: A name of the engines family.
        urls: Addresses of its servers.
        model: Model whose tokenizer must agree with the engine's.
        cache: Polar's folder of converted models.
    """
    reached: dict[str, Capabilities] = {}
    for url in urls:
        subject = f"engine {name}" if len(urls) == 1 else f"{name} at {url}"
        started_at = time.monotonic()
        found = _probed(name, url)
        if isinstance(found, PolarError):
            yield Finding(subject, "fail", found.finding, found.fix)
            continue
        reached[url] = found
        took_s = time.monotonic() - started_at
        weights = f", weights '{found.weights}'" if found.weights else ""
        told = f"{found.detail or found.model}, {found.max_context} tokens{weights}"
        yield Finding(subject, "ok", f"{told}, probed in {took_s:.1f} s")
        yield from _abilities(subject, found)
        yield _tokenizer(url, found.model, model, cache)
    if len(urls) > 1:
        yield _agreement(list(reached.values()), missing=len(urls) - len(reached))


def _probed(name: str, url: str) -> Capabilities | PolarError:
    try:
        return asyncio.run(_probe(name, url))
    except TimeoutError:
        return EngineError(
            f"{url} did not sample a token in {_TIMEOUT_S:.0f} s",
            fix="See whether the server is still loading, or busy.",
        )
    except PolarError as error:
        return error


async def _probe(name: str, url: str) -> Capabilities:
    declared = settings_model("engine", name)
    if "urls" not in declared.model_fields:
        served = [each for each in own_names("engine") if _has_address(each)]
        raise ConfigError(
            f"the engine {name} has no address",
            where="--engine",
            fix=f"Name one with a server: {', '.join(served)}.",
        )
    engine = engines.load(name)(declared.model_validate({"urls": (url,)}))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await engine.probe()
    finally:
        await engine.aclose()


def _has_address(name: str) -> bool:
    return "urls" in settings_model("engine", name).model_fields


def _agreement(found: Sequence[Capabilities], *, missing: int) -> Finding:
    """Compare the servers of one engine."""
    subject = "servers agree"
    kinds = {(each.model, each.max_context, each.weights) for each in found}
    if len(kinds) > 1:
        told = "; ".join(f"{m}, {c} tokens, weights '{w}'" for m, c, w in sorted(kinds))
        fix = "Start them all anew, with the same model and flags."
        return Finding(subject, "fail", f"they differ: {told}", fix)
    if missing:
        fix = "Start the others, or leave them out: a run begins only when all answer."
        return Finding(subject, "fail", f"{len(found)} of {len(found) + missing} answer", fix)
    return Finding(subject, "ok", f"{len(found)} servers, same model, window and weights")


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
