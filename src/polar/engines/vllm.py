"""vLLM servers: token ids in and out over HTTP.

Written against vLLM 0.32, started as

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs

The scale-out endpoints take and return token ids; the logprobs mode makes the logprobs those of the
distribution that is sampled from; the development mode serves pausing and weight updates.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.engines.servers import (
    HttpServer,
    ReplicatedEngine,
    ServerKind,
    ServerWeights,
    certain,
    check_request,
    read_events,
    stamped,
    weight_label,
)
from polar.engines.settings import VllmSettings
from polar.engines.vllm_probe import Found, probe_server
from polar.engines.vllm_wire import generate_body, read_event
from polar.errors import EngineRefused

__all__ = ["VllmEngine", "VllmServer"]

_KIND = ServerKind(
    name="vLLM",
    missing="Check that vLLM runs there, and engine.settings.model; pausing and weight updates "
    "need vLLM to be started with VLLM_SERVER_DEV_MODE=1.",
    forbidden="Start vLLM 0.32 or newer with --enable-scale-out.",
)


class VllmEngine(ReplicatedEngine):
    """Samples from vLLM servers that all serve the same model.

    Args:
        settings: Addresses, and all else.
    """

    def __init__(self, settings: VllmSettings | None = None) -> None:
        self.settings = settings or VllmSettings()
        servers = [VllmServer(url, self.settings) for url in self.settings.urls]
        super().__init__(servers, self.settings)


class VllmServer(HttpServer):
    """Samples from one vLLM server. Closing a stream closes its connection: vLLM then aborts it.

    Args:
        address: Of the server.
        settings: All else.
    """

    def __init__(self, address: str, settings: VllmSettings) -> None:
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

        Tokens that arrive after a weight update are held back until the reply ends.

        Raises:
            ContextOverflow: The prompt leaves no room for one token.
            EngineRefused: The server's logprobs are not of the distribution to be sampled from.
            StaleWeights: The server has lost the weights that it was given.
            EngineError: The server failed or cannot be reached.
        """
        found = self._found or await self._probe()
        self.weights.present()
        _check(request, found)
        body = generate_body(
            request, model=request.model or found.model, max_context=found.max_context
        )
        lines = self._connection.lines("/inference/v1/generate", body)
        async with aclosing(stamped(read_events(lines, read_event), self.weights)) as chunks:
            async for chunk in chunks:
                yield certain(chunk, request.sampling)

    async def probe(self) -> Capabilities:
        """Sample, and compare logprobs of two temperatures.

        Raises:
            EngineRefused: Token ids or logprobs are missing.
            EngineError: The server cannot be reached or used.
        """
        found = await self._probe()
        limits = "" if found.processed else ", temperature 1 only (raw logprobs)"
        return Capabilities(
            model=found.model,
            max_context=found.max_context,
            token_ids=True,
            logprobs=True,
            weight_updates=found.weight_updates,
            other_models=found.other_models,
            detail=f"vLLM {found.server_version} at {self.address}{limits}",
            weights=found.label,
        )

    async def pause(self) -> None:
        """Freeze requests at a token boundary."""
        await self._tell("/pause?mode=keep")

    async def resume(self) -> None:
        """Go on sampling."""
        await self._tell("/resume")

    async def load_weights(self, version: int, path: Path | None) -> None:
        """Let the server read weights from a folder, called while paused.

        Keys and values of running requests are computed again under the new weights.

        Raises:
            EngineError: The server failed.
        """
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
        await self._tell("/collective_rpc", reload)
        await self._tell("/update_weight_version", {"new_version": weight_label(version)})
        await self._tell("/reset_prefix_cache?reset_running_requests=true")
        self.weights.loaded(version)

    async def _probe(self) -> Found:
        found = await probe_server(self._connection, self._settings.model)
        self._found = found
        self.weights.found(found.label)
        return found

    async def _tell(self, path: str, body: Mapping[str, object] | None = None) -> None:
        await self._connection.post(path, body, timeout_s=self._settings.update_timeout_s)


def _check(request: SampleRequest, found: Found) -> None:
    check_request(request, found.max_context)
    sampling = request.sampling
    plain = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k is None
    if not (plain or found.processed or sampling.temperature == 0.0):
        raise EngineRefused(
            "the server's logprobs are not of the distribution that it samples from",
            fix="Start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1.",
        )
