"""SGLang servers: token ids in and out over HTTP.

Written against SGLang 0.5.23, started for instance as

    python -m sglang.launch_server --model-path MODEL --incremental-streaming-output

The flag makes each event of a stream tell only its new tokens; without it they tell all so far,
which works as well and costs more the longer a reply is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import orjson

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.engines.servers import (
    HttpServer,
    ReplicatedEngine,
    ServerKind,
    ServerWeights,
    certain,
    check_request,
    ended,
    read_events,
    rest_of,
    stamped,
    weight_label,
)
from polar.engines.settings import SglangSettings
from polar.engines.sglang_probe import Found, probe_server
from polar.engines.sglang_wire import Reader, generate_body
from polar.errors import EngineError, EngineRefused, ServerFailed

__all__ = ["SglangEngine", "SglangServer"]

_KIND = ServerKind(
    name="SGLang",
    missing="Check that SGLang's own server runs there, 0.5.23 or newer.",
    forbidden="Check engine.settings.api_key: where the server has an admin key, it must be that.",
)


class SglangEngine(ReplicatedEngine):
    """Samples from SGLang servers that all serve the same model.

    Args:
        settings: Addresses, and all else.
    """

    def __init__(self, settings: SglangSettings | None = None) -> None:
        self.settings = settings or SglangSettings()
        servers = [SglangServer(url, self.settings) for url in self.settings.urls]
        super().__init__(servers, self.settings)


class SglangServer(HttpServer):
    """Samples from one SGLang server. Closing a stream closes its connection: it is then aborted.

    Args:
        address: Of the server.
        settings: All else.
    """

    def __init__(self, address: str, settings: SglangSettings) -> None:
        super().__init__(address, settings, _KIND)
        self._settings = settings
        self._found: Found | None = None
        self.weights = ServerWeights(address)

    @property
    def weight_version(self) -> int | None:
        """Version of the weights that the last probe or update found; None: unknown weights."""
        return self.weights.version

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        """Stream a continuation of `prompt_ids`; closing the iterator cancels the generation.

        The server also stops at the model's own end tokens. Where such a one is no stop token of
        the request, the reply is gone on with.

        Raises:
            ContextOverflow: The prompt leaves no room for one token.
            EngineRefused: The server's logprobs are not of the distribution to be sampled from.
            StaleWeights: The server has lost the weights that it was given.
            EngineError: The server failed or cannot be reached.
        """
        found = self._found or await self._probe()
        _check(request, found)
        given: list[int] = []
        over = False
        while not over:
            async with aclosing(self._part(rest_of(request, given), found)) as chunks:
                before = len(given)
                async for chunk in chunks:
                    given += chunk.token_ids
                    if chunk.finish_reason == "stop":
                        reason = ended(request, given, found.max_context)
                        chunk = replace(chunk, finish_reason=reason)  # noqa: PLW2901
                    over = chunk.finish_reason is not None
                    yield chunk
            if len(given) == before:
                raise ServerFailed("the server sampled nothing", where=self.address)

    async def probe(self) -> Capabilities:
        """Sample, and compare logprobs of two temperatures.

        Raises:
            EngineRefused: Token ids or logprobs are missing.
            EngineError: The server cannot be reached or used.
        """
        found = await self._probe()
        limits = "" if found.processed else ", temperature 1 only (raw logprobs)"
        limits += "" if found.weight_spans else ", tells no spans of weight versions"
        return Capabilities(
            model=found.model,
            max_context=found.max_context,
            token_ids=True,
            logprobs=True,
            weight_updates=found.weight_spans,
            other_models=found.other_models,
            detail=f"SGLang {found.server_version} at {self.address}{limits}",
            weights=found.label,
        )

    async def pause(self) -> None:
        """Freeze requests at a token boundary; they give up their keys and values."""
        await self._tell("/pause_generation", {"mode": "retract"})

    async def resume(self) -> None:
        """Go on sampling."""
        await self._tell("/continue_generation", {})

    async def load_weights(self, version: int, path: Path | None) -> None:
        """Let the server read weights from a folder, called while paused.

        Keys and values of running requests are computed again under the new weights.

        Raises:
            EngineError: The server failed.
        """
        update = {
            "model_path": str(path),
            "weight_version": weight_label(version),
            "flush_cache": True,
            "abort_all_requests": False,
        }
        answer = orjson.loads(await self._tell("/update_weights_from_disk", update))
        if not answer["success"]:
            raise EngineError(
                f"the server took no weights: {answer.get('message')}", where=self.address
            )
        self.weights.loaded(version)

    async def _probe(self) -> Found:
        found = await probe_server(self._connection, self._settings.model)
        self._found = found
        self.weights.found(found.label)
        return found

    async def _part(self, request: SampleRequest, found: Found) -> AsyncGenerator[Chunk]:
        """Sample until the server stops, for whatever reason."""
        adapter = None if request.model in (None, found.model) else request.model
        body = generate_body(request, max_context=found.max_context, adapter=adapter)
        events = read_events(self._connection.lines("/generate", body), Reader().read)
        async with aclosing(stamped(events, self.weights)) as chunks:
            async for chunk in chunks:
                yield certain(chunk, request.sampling)

    async def _tell(self, path: str, body: Mapping[str, object]) -> bytes:
        return await self._connection.post(path, body, timeout_s=self._settings.update_timeout_s)


def _check(request: SampleRequest, found: Found) -> None:
    check_request(request, found.max_context)
    sampling = request.sampling
    if sampling.temperature == 0.0:
        return
    if sampling.top_p != 1.0 or sampling.top_k is not None:
        raise EngineRefused(
            "SGLang's logprobs are from before top-p and top-k, so with them they would not be "
            "of the distribution that is sampled from",
            fix="Set rollout.top_p to 1 and rollout.top_k to all.",
        )
    if not (found.processed or sampling.temperature == 1.0):
        raise EngineRefused(
            "the server's logprobs are not of the distribution that it samples from",
            fix="Start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB, or sample at temperature 1.",
        )
