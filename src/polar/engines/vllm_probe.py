"""Find out by sampling what a vLLM server can be used for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polar.engines.servers import COOL, Connection, follows_temperature, reading_answers
from polar.errors import EngineError, EngineRefused

__all__ = ["Found", "probe_server"]

_PROMPT = (1, 2, 3, 4)
_ALTERNATIVES = 10
_PAUSED = "/is_paused"


@dataclass(frozen=True, slots=True)
class Found:
    """What a server is."""

    model: str
    max_context: int
    server_version: str
    label: str
    """What the server calls its present weights."""
    processed: bool
    """Whether logprobs are of the distribution after temperature."""
    weight_updates: bool
    other_models: tuple[str, ...]
    """What else is served over the same weights: LoRA adapters."""


async def probe_server(server: Connection, model: str | None) -> Found:
    """Probe a server.

    Args:
        server: Its connection.
        model: Name the model is served under; absent: the first in the server's list.

    Raises:
        EngineRefused: Token ids or logprobs are missing.
        EngineError: It cannot be reached, is paused, or serves no such model.
    """
    with reading_answers("vLLM", server.address):
        return await _probed(server, model)


async def _probed(server: Connection, model: str | None) -> Found:
    entry, others = await _served(server, model)
    weight_updates = await _takes_weights(server)
    warm = await _sample(server, entry["id"], 1.0)
    cool = await _sample(server, entry["id"], COOL)
    spans = warm.get("weight_versions") or [{"version": ""}]
    return Found(
        model=entry["id"],
        max_context=entry["max_model_len"],
        server_version=(await server.get("/version"))["version"],
        label=spans[0]["version"],
        processed=follows_temperature(_logprobs(server, warm), _logprobs(server, cool)),
        weight_updates=weight_updates,
        other_models=others,
    )


async def _takes_weights(server: Connection) -> bool:
    """Say whether it can be paused and updated; a paused one would never answer what follows."""
    if not await server.serves(_PAUSED):
        return False
    if (await server.get(_PAUSED)).get("is_paused"):
        raise EngineError(
            "the server is paused: a run is giving it new weights, or was killed while it did",
            where=server.address,
            fix="Wait for that run or resume it; without one, send POST /resume to the server.",
        )
    return True


async def _served(server: Connection, model: str | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Look a model up in the server's list, which in vLLM's tells the context window.

    Returns:
        Its entry, and the names of the others.
    """
    served = (await server.get("/v1/models")).get("data")
    if not isinstance(served, list) or not all("max_model_len" in each for each in served):
        raise EngineRefused(
            "the server is not vLLM: its list of models tells no context window",
            where=server.address,
            fix="Serve the model with vLLM 0.32 or newer.",
        )
    entry = next((each for each in served if model is None or each["id"] == model), None)
    if entry is None:
        named = "any model" if model is None else f"a model '{model}'"
        raise EngineError(f"the server does not serve {named}", where=server.address)
    return entry, tuple(each["id"] for each in served if each["id"] != entry["id"])


async def _sample(server: Connection, model: str, temperature: float) -> dict[str, Any]:
    """Sample one token, with the likeliest alternatives."""
    parameters = {"max_tokens": 1, "temperature": temperature, "logprobs": _ALTERNATIVES}
    body = {"model": model, "token_ids": _PROMPT, "sampling_params": parameters}
    answer = await server.post_json("/inference/v1/generate", body)
    choice: dict[str, Any] = answer["choices"][0]
    return choice


def _logprobs(server: Connection, choice: Mapping[str, Any]) -> dict[int, float]:
    """Give the logprobs of the likeliest tokens by id."""
    content = (choice.get("logprobs") or {}).get("content")
    if not choice.get("token_ids") or not content:
        raise EngineRefused(
            "the server returns no token ids or no logprobs, so nothing could be trained on",
            where=server.address,
            fix="Start vLLM 0.32 or newer with --enable-scale-out.",
        )
    return {each["token_id"]: each["logprob"] for each in content[0]["top_logprobs"]}
