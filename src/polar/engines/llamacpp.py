"""llama.cpp servers: token ids in and out over HTTP, with the weights that they were started with.

Written against the server of October 2026, started for instance as

    llama-server -m MODEL.gguf --parallel 4 --ctx-size 32768
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.engines.llamacpp_wire import (
    completion_body,
    is_plain,
    logprob_in,
    raw_body,
    read_completion,
)
from polar.engines.servers import (
    COOL,
    FixedServer,
    ReplicatedEngine,
    ServerKind,
    check_request,
    follows_temperature,
    reading_answers,
    rest_of,
)
from polar.engines.settings import LlamaCppSettings
from polar.errors import EngineError, EngineRefused, ServerFailed
from polar.types import Sampling, TokenIds

__all__ = ["LlamaCppEngine", "LlamaCppServer"]

_KIND = ServerKind(
    name="llama.cpp",
    missing="Check that llama.cpp's own server runs there.",
    forbidden="Check engine.settings.api_key.",
)
_PROMPT = (1, 2, 3, 4)
_LIKELY = 100
"""Tokens asked for where one is looked for: a whole vocabulary takes a server a second."""


class LlamaCppEngine(ReplicatedEngine):
    """Samples from llama.cpp servers that all serve the same model.

    Args:
        settings: Addresses, and all else.
    """

    def __init__(self, settings: LlamaCppSettings | None = None) -> None:
        self.settings = settings or LlamaCppSettings()
        servers = [LlamaCppServer(url, self.settings) for url in self.settings.urls]
        super().__init__(servers, self.settings)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a server is."""

    model: str
    max_context: int
    vocabulary: int
    build: str
    whole_id: int
    """A token of whole characters."""


class LlamaCppServer(FixedServer):
    """Samples from one llama.cpp server, some tokens a request: its prompt cache makes that cheap.

    Args:
        address: Of the server.
        settings: All else.
    """

    def __init__(self, address: str, settings: LlamaCppSettings) -> None:
        super().__init__(address, settings, _KIND)
        self._settings = settings
        self._found: _Found | None = None

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        """Stream a continuation of `prompt_ids`; closing the iterator cancels the generation.

        Raises:
            ContextOverflow: The prompt leaves no room for one token.
            EngineError: The server failed or cannot be reached.
        """
        found = self._found or await self._probe()
        check_request(request, found.max_context)
        given: list[int] = []
        step = 1
        while True:
            left = _left(request, found.max_context) - len(given)
            chunk = await self._chunk(rest_of(request, given), found, min(step, left))
            given += chunk.token_ids
            if chunk.finish_reason is None and len(chunk.token_ids) == left:
                chunk = replace(chunk, finish_reason="length")
            yield chunk
            if chunk.finish_reason is not None:
                return
            step = min(2 * step, self._settings.chunk_tokens)

    async def probe(self) -> Capabilities:
        """Sample, and compare probabilities of two temperatures.

        Raises:
            EngineRefused: Token ids or probabilities are missing, or not of what is sampled from.
            EngineError: The server cannot be reached or used.
        """
        found = await self._probe()
        return Capabilities(
            model=found.model,
            max_context=found.max_context,
            token_ids=True,
            logprobs=True,
            weight_updates=False,
            detail=f"llama.cpp {found.build} at {self.address}",
        )

    async def _chunk(self, request: SampleRequest, found: _Found, tokens: int) -> Chunk:
        """Sample some tokens; what follows a stop token is only counted."""
        await self.wait_running()
        sampling = request.sampling
        body = completion_body(request.prompt_ids, sampling, tokens=tokens)
        done = read_completion(await self._connection.sampled("/completion", body), tokens)
        if not (done.token_ids or done.full):
            raise ServerFailed("the server sampled nothing", where=self.address)
        stops = [place for place, t in enumerate(done.token_ids) if t in sampling.stop_token_ids]
        token_ids = done.token_ids[: stops[0] + 1] if stops else done.token_ids
        told = done.logprobs[: len(token_ids)]
        return Chunk(
            token_ids=token_ids,
            logprobs=await self._logprobs(request, found, token_ids, told),
            weight_version=0,
            finish_reason="stop" if stops else "length" if done.full else None,
            cached_tokens=done.cached_tokens,
            measured_tokens=0 if sampling.temperature == 0.0 else told.count(None),
            discarded_tokens=len(done.token_ids) - len(token_ids),
        )

    async def _logprobs(
        self,
        request: SampleRequest,
        found: _Found,
        token_ids: Sequence[int],
        told: Sequence[float | None],
    ) -> tuple[float, ...]:
        """Complete the logprobs: those that the server did not tell are asked for by themselves."""
        return tuple(
            [
                await self._measured(request, found, token_ids, place) if known is None else known
                for place, known in enumerate(told)
            ]
        )

    async def _measured(
        self, request: SampleRequest, found: _Found, token_ids: Sequence[int], place: int
    ) -> float:
        """Ask how likely a sampled token was, of the same weights after the same tokens."""
        sampling, token = request.sampling, token_ids[place]
        if sampling.temperature == 0.0:
            return 0.0
        prefix = (*request.prompt_ids, *token_ids[:place])
        if is_plain(sampling) and token in (likely := await self._raw(prefix, found, _LIKELY)):
            return likely[token]
        logprob = logprob_in(await self._raw(prefix, found, found.vocabulary), token, sampling)
        if logprob is None:
            raise EngineError(
                f"the server sampled token {token}, which its probabilities exclude",
                where=self.address,
            )
        return logprob

    async def _raw(self, prefix: TokenIds, found: _Found, count: int) -> dict[int, float]:
        """Ask for the model's logprobs of the likeliest tokens after a prefix."""
        body = raw_body(prefix, count=count, whole_id=found.whole_id)
        answer = await self._connection.sampled("/completion", body)
        told = answer["completion_probabilities"][0]["top_logprobs"]
        return {each["id"]: each["logprob"] for each in told}

    async def _probe(self) -> _Found:
        with reading_answers("llama.cpp", self.address):
            self._found = await self._ask_what_it_is()
        return self._found

    async def _ask_what_it_is(self) -> _Found:
        properties = await self._connection.get("/props")
        listed = (await self._connection.get("/v1/models"))["data"][0]
        letter = await self._connection.post_json("/tokenize", {"content": "a"})
        await self._check_probabilities()
        return _Found(
            model=self._settings.model or str(listed["id"]),
            max_context=int(properties["default_generation_settings"]["n_ctx"]),
            vocabulary=int(listed["meta"]["n_vocab"]),
            build=str(properties["build_info"]),
            whole_id=int(letter["tokens"][-1]),
        )

    async def _check_probabilities(self) -> None:
        """See that halving the temperature doubles the distances between logprobs.

        Raises:
            EngineRefused: It does not, or there are none.
        """
        warm, cool = await self._distribution(1.0), await self._distribution(COOL)
        if not follows_temperature(warm, cool):
            raise EngineRefused(
                "the server's probabilities are not of the distribution that it samples from",
                where=self.address,
                fix="Use a llama.cpp server that knows post_sampling_probs.",
            )

    async def _distribution(self, temperature: float) -> dict[int, float]:
        """Give the likeliest tokens' log-probabilities after a fixed prompt."""
        sampling = Sampling(temperature=temperature, seed=1)
        body: dict[str, Any] = completion_body(_PROMPT, sampling, tokens=1)
        answer = await self._connection.post_json("/completion", body | {"n_probs": 10})
        read_completion(answer, 1)
        (told,) = answer["completion_probabilities"]
        return {each["id"]: math.log(each["prob"]) for each in told["top_probs"]}


def _left(request: SampleRequest, max_context: int) -> int:
    room = max_context - len(request.prompt_ids)
    limit = request.sampling.max_tokens
    return room if limit is None else min(room, limit)
