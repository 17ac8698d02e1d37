"""The wire format of SGLang's `/generate`, without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np

from polar.engines.base import SampleRequest
from polar.engines.servers import Event, Span, event_data
from polar.errors import EngineError, EngineRefused, ServerFailed

__all__ = ["Reader", "generate_body", "probe_body"]


def generate_body(
    request: SampleRequest, *, max_context: int, adapter: str | None = None
) -> dict[str, Any]:
    """Make a request, its ids an array, with every parameter: servers have defaults.

    `ignore_eos` makes a server ignore the stop tokens of the request as well.
    """
    sampling = request.sampling
    room = max_context - len(request.prompt_ids)
    stops = list(sampling.stop_token_ids)
    parameters = {
        "temperature": sampling.temperature,
        "max_new_tokens": min(room, sampling.max_tokens or room),
        "stop_token_ids": stops,
        "ignore_eos": not stops,
        "no_stop_trim": True,
        "sampling_seed": sampling.seed,
    }
    body: dict[str, Any] = {
        "input_ids": np.asarray(request.prompt_ids, dtype=np.int32),
        "sampling_params": {**_NEUTRAL, **parameters},
        "return_logprob": True,
        "stream": True,
    }
    return body if adapter is None else body | {"lora_path": adapter}


def probe_body(
    prompt_ids: Sequence[int], temperature: float, *, alternatives: int
) -> dict[str, Any]:
    """Ask for one token, with the likeliest alternatives, in one answer."""
    parameters = {"temperature": temperature, "max_new_tokens": 1, "ignore_eos": True}
    return {
        "input_ids": list(prompt_ids),
        "sampling_params": {**_NEUTRAL, **parameters},
        "return_logprob": True,
        "top_logprobs_num": alternatives,
    }


_NEUTRAL: Mapping[str, object] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "stop": None,
    "stop_regex": None,
    "logit_bias": None,
    "n": 1,
}
"""Parameters that change nothing: with others the logprobs are not of what is sampled from."""


@dataclass(slots=True)
class Reader:
    """Reads one stream, whose events tell all tokens so far or only the new ones.

    Which of the two is a flag of the server. The number of tokens so far is told either way, so
    that each event says by itself what it holds, and a lost token shows.
    """

    given: int = 0
    """Tokens read so far."""

    def read(self, line: bytes) -> Event | None:
        """Read a line of the stream; blank lines and its end mark say nothing.

        Raises:
            EngineRefused: Token ids or logprobs are missing.
            ServerLost: The line is torn.
            ServerFailed: The server reports an error, or lost tokens.
            EngineError: The server refuses the request.
        """
        message = event_data(line)
        return None if message is None else self.take(message)

    def take(self, message: Mapping[str, Any]) -> Event:
        """Take what a message tells that no earlier one did.

        Raises:
            EngineRefused: Token ids or logprobs are missing.
            ServerFailed: The server reports an error, or lost tokens.
            EngineError: The server refuses the request.
        """
        if "meta_info" not in message:
            raise _reported(message)
        meta = message["meta_info"]
        reason = _finish_reason(meta)
        told = meta.get("output_token_logprobs")
        if message.get("output_ids") is None or told is None:
            raise EngineRefused(
                "the server returns no token ids or no logprobs, so nothing could be trained on",
                fix="Use SGLang's own server, and not its router or an older release.",
            )
        total = int(meta["completion_tokens"])
        token_ids = self._new(message["output_ids"], total)
        event = Event(
            token_ids=tuple(token_ids),
            logprobs=_logprobs(token_ids, self._new(told, total)),
            finish_reason=reason,
            spans=_spans(meta, total) if reason else (),
            cached_tokens=int(meta.get("cached_tokens") or 0) if self.given == 0 else 0,
        )
        self.given = total
        return event

    def _new(self, values: Sequence[Any], total: int) -> Sequence[Any]:
        """Take what was not told before from a list of either form."""
        if len(values) == total:
            return values[self.given :]
        if self.given + len(values) == total:
            return values
        raise ServerFailed(
            f"the server tells {len(values)} of {total} tokens after {self.given}: some are lost"
        )


def _reported(message: Mapping[str, Any]) -> EngineError:
    """Tell a refusal, which any server would repeat, from a failure of this server."""
    error = message.get("error")
    if isinstance(error, Mapping) and error.get("code") == HTTPStatus.BAD_REQUEST:
        return EngineError(f"the server refuses the request: {error.get('message')}")
    return ServerFailed(f"the server broke the stream off: {str(message)[:200]}")


def _finish_reason(meta: Mapping[str, Any]) -> Any:
    reason = meta["finish_reason"]
    kind = None if reason is None else reason["type"]
    if kind in (None, "stop", "length"):
        return kind
    said = f"{kind}: {reason.get('message', '')}"
    if reason.get("status_code") == HTTPStatus.BAD_REQUEST:
        raise EngineError(f"the server refuses the request: {said}")
    raise ServerFailed(f"the server ended the request: {said}")


def _logprobs(token_ids: Sequence[int], told: Sequence[Sequence[Any]]) -> tuple[float, ...]:
    """Give the logprobs, each told together with its token.

    Raises:
        ServerFailed: They are of other tokens.
    """
    if [each[1] for each in told] != list(token_ids):
        raise ServerFailed("the server's logprobs are of other tokens than it sampled")
    return tuple(each[0] for each in told)


def _spans(meta: Mapping[str, Any], total: int) -> tuple[Span, ...]:
    """Read which weights sampled which tokens; servers that tell no spans tell the last label."""
    told = meta.get("weight_versions")
    if told is None:
        return (Span(str(meta.get("weight_version")), 0, total),)
    return tuple(Span(each["version"], each["start"], each["end"]) for each in told)
