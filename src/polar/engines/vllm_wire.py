"""The wire format of vLLM's `/inference/v1/generate`, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polar.engines.base import SampleRequest
from polar.engines.servers import Event, Span, event_data
from polar.errors import EngineRefused, ServerFailed

__all__ = ["generate_body", "read_event"]


def generate_body(request: SampleRequest, *, model: str, max_context: int) -> dict[str, Any]:
    """Make a request, its ids an array, with every parameter: servers have defaults."""
    sampling = request.sampling
    room = max_context - len(request.prompt_ids)
    parameters = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": min(room, sampling.max_tokens or room),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,
        "seed": sampling.seed,
        "logprobs": 0,
        "detokenize": False,
    }
    return {
        "model": model,
        "token_ids": np.asarray(request.prompt_ids, dtype=np.int32),
        "sampling_params": parameters,
        "stream": True,
    }


def read_event(line: bytes) -> Event | None:
    """Read a line of the stream; blank lines and its end mark say nothing.

    Raises:
        EngineRefused: Token ids or logprobs are missing.
        ServerLost: The line is torn.
        ServerFailed: The server reports an error.
    """
    if (message := event_data(line)) is None:
        return None
    if "choices" not in message:
        raise ServerFailed(f"the server broke the stream off: {str(message)[:200]}")
    for choice in message["choices"]:
        return _read_choice(choice)
    return None


def _read_choice(choice: Mapping[str, Any]) -> Event:
    token_ids = choice.get("token_ids")
    content = (choice.get("logprobs") or {}).get("content")
    if token_ids is None or content is None or len(content) != len(token_ids):
        raise EngineRefused(
            "the server returns no token ids or no logprobs, so nothing could be trained on",
            fix="Start vLLM 0.32 or newer with --enable-scale-out.",
        )
    reason = choice["finish_reason"]
    if reason not in (None, "stop", "length"):
        raise ServerFailed(f"the server ended the request: {reason}")
    return Event(
        token_ids=tuple(token_ids),
        logprobs=tuple([entry["logprob"] for entry in content]),
        finish_reason=reason,
        spans=tuple(
            Span(span["version"], span["start"], span["end"])
            for span in choice.get("weight_versions") or ()
        ),
    )
