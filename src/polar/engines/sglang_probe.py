"""Find out by sampling what an SGLang server can be used for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polar.engines.servers import COOL, Connection, follows_temperature, reading_answers
from polar.engines.sglang_wire import Reader, probe_body
from polar.errors import EngineError, EngineRefused

__all__ = ["Found", "probe_server"]

_PROMPT = (1, 2, 3, 4)
_ALTERNATIVES = 10


@dataclass(frozen=True, slots=True)
class Found:
    """What a server is."""

    model: str
    """Its tokenizer's path: that of the model it was started with, whatever it loaded since."""
    max_context: int
    server_version: str
    label: str
    """What the server calls its present weights."""
    processed: bool
    """Whether logprobs are of the distribution after temperature."""
    weight_spans: bool
    """Whether it tells which weights sampled which token, without which none can be replaced."""
    other_models: tuple[str, ...]
    """What else is served over the same weights: LoRA adapters."""


async def probe_server(server: Connection, model: str | None) -> Found:
    """Probe a server.

    Args:
        server: Its connection.
        model: Name or path that the server must know its model by; absent: any.

    Raises:
        EngineRefused: Token ids or logprobs are missing.
        EngineError: It cannot be reached, or serves no such model.
    """
    with reading_answers("SGLang", server.address):
        return await _probed(server, model)


async def _probed(server: Connection, model: str | None) -> Found:
    told = await server.get("/model_info")
    _check_model(server, told, model)
    served = (await server.get("/v1/models"))["data"]
    started = await server.get("/server_info")
    warm = await _sample(server, 1.0)
    cool = await _sample(server, COOL)
    return Found(
        model=str(told["tokenizer_path"]),
        max_context=_window(served, started),
        server_version=str(started["version"]),
        label=str(warm["weight_version"]),
        processed=follows_temperature(_likely(warm), _likely(cool)),
        weight_spans=warm.get("weight_versions") is not None,
        other_models=tuple(str(each["id"]) for each in served if each.get("parent")),
    )


def _check_model(server: Connection, told: Mapping[str, Any], model: str | None) -> None:
    """See that the server generates, and from the model that is wanted.

    It goes by the path of the last weights that it was given, so that only its tokenizer tells
    what it was started with.
    """
    if not told["is_generation"]:
        raise EngineRefused("the server's model does not generate", where=server.address)
    names = {told["tokenizer_path"], told["model_path"], told.get("served_model_name")}
    if model is not None and model not in names:
        raise EngineError(
            f"the server does not serve a model '{model}'",
            where=server.address,
            fix=f"Set engine.settings.model to {told['tokenizer_path']}, or leave it out.",
        )


def _window(served: Sequence[Mapping[str, Any]], started: Mapping[str, Any]) -> int:
    """Give the tokens that a prompt and its reply can have together.

    That is less than the model's window where the memory for keys and values is less, or where
    tokens drafted ahead need room.
    """
    window = next(int(each["max_model_len"]) for each in served if not each.get("parent"))
    if started.get("speculative_algorithm"):
        drafts = int(started.get("speculative_eagle_topk") or 1)
        steps = int(started.get("speculative_num_steps") or 0)
        window -= max(drafts * steps, int(started.get("speculative_num_draft_tokens") or 0))
    return min(window, int(started.get("max_req_input_len") or window))


async def _sample(server: Connection, temperature: float) -> dict[str, Any]:
    """Sample one token, and see that its id and logprob are told."""
    body = probe_body(_PROMPT, temperature, alternatives=_ALTERNATIVES)
    answer = await server.post_json("/generate", body)
    Reader().take(answer)
    meta: dict[str, Any] = answer["meta_info"]
    return meta


def _likely(meta: Mapping[str, Any]) -> dict[int, float]:
    """Give the logprobs of the likeliest tokens by id."""
    return {token: logprob for logprob, token, *_ in meta["output_top_logprobs"][0]}
