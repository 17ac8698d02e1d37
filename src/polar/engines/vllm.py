"""vLLM servers: token ids in and out over HTTP.

Written against vLLM 0.32, started as

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs

The scale-out endpoints take and return token ids; the logprobs mode makes the logprobs those of the
distribution that is sampled from; the development mode serves pausing and weight updates.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from pathlib import Path

import httpx

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.engines.settings import VllmSettings
from polar.engines.vllm_http import open_client, raise_for_status, unreachable
from polar.engines.vllm_probe import Found, probe_server
from polar.engines.vllm_wire import Event, Span, generate_body, read_event, spread, weight_label
from polar.errors import ContextOverflow, EngineError, EngineRefused, ModelMissing
from polar.types import Sampling

__all__ = ["VllmEngine"]


class VllmEngine:
    """Samples from vLLM servers that all serve the same model.

    Requests of the same affinity go to the same server, for its prefix cache. Closing a stream
    closes its connection, upon which vLLM aborts the request.

    Args:
        settings: Addresses, and all else.
        transport: What carries the requests; absent: the network.
    """

    def __init__(
        self,
        settings: VllmSettings | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.settings = settings or VllmSettings()
        self._clients = [
            open_client(address, self.settings, transport) for address in self.settings.urls
        ]
        self._turns = count()
        self._found: Found | None = None
        self._version = 0
        self._labels: dict[str, int] = {}
        self._streams: set[httpx.Response] = set()
        self._closed = False

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        """Stream a continuation of `prompt_ids`; closing the iterator cancels the generation.

        Tokens that arrive after a weight update are held back until the reply ends: only then does
        the server say which of them the old weights had sampled.

        Raises:
            ContextOverflow: The prompt leaves no room for one token.
            EngineRefused: The server's logprobs are not of the distribution to be sampled from.
            EngineError: The server failed or cannot be reached.
        """
        if self._closed:
            raise EngineError("the engine was closed")
        found = self._found or await self._probe()
        _check(request, found)
        body = generate_body(
            request, model=request.model or found.model, max_context=found.max_context
        )
        began_with = self._version
        given = 0
        held = Event((), (), None, ())
        async with aclosing(self._events(self._client_for(request), body)) as events:
            async for event in events:
                held = _join(held, event)
                if event.finish_reason is not None:
                    for chunk in self._by_version(held, given, began_with):
                        yield _certain(chunk, request.sampling)
                    return
                if self._version == began_with:
                    given += len(held.token_ids)
                    chunk = Chunk(held.token_ids, held.logprobs, began_with)
                    held = Event((), (), None, ())
                    yield _certain(chunk, request.sampling)
        raise EngineError("the server's stream ended before the reply did", where=self._where())

    async def probe(self) -> Capabilities:
        """Sample from every server, and compare logprobs of two temperatures.

        Raises:
            EngineRefused: Token ids or logprobs are missing.
            EngineError: A server cannot be reached or used.
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
            detail=f"vLLM {found.server_version} at {self._where()}{limits}",
        )

    async def pause(self) -> None:
        """Freeze requests at a token boundary, on every server."""
        await self._tell("/pause?mode=keep")

    async def resume(self) -> None:
        """Go on sampling."""
        await self._tell("/resume")

    async def load_weights(self, version: int, path: Path | None) -> None:
        """Let every server read weights from a folder that it can see, called while paused.

        Keys and values of running requests are computed again under the new weights.

        Raises:
            ModelMissing: The folder holds no weights; vLLM itself would not survive that.
            EngineError: No folder was given, or a server failed.
        """
        if path is None:
            raise EngineError(
                "a vLLM server cannot share the trainer's memory",
                fix="Give it a folder of weights.",
            )
        if not await asyncio.to_thread(lambda: any(path.glob("*.safetensors"))):
            raise ModelMissing("the folder holds no safetensors file", where=str(path))
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
        await self._tell("/collective_rpc", reload)
        await self._tell("/update_weight_version", {"new_version": weight_label(version)})
        await self._tell("/reset_prefix_cache?reset_running_requests=true")
        self._labels[weight_label(version)] = version
        self._version = version

    async def aclose(self) -> None:
        """Close all connections; open streams end with `EngineError`."""
        self._closed = True
        for response in tuple(self._streams):
            await response.aclose()
        for client in self._clients:
            await client.aclose()

    async def _probe(self) -> Found:
        """Probe every server; all must serve the same model."""
        found = [await probe_server(client, self.settings.model) for client in self._clients]
        if len({(each.model, each.max_context) for each in found}) > 1:
            raise EngineError("the servers do not serve the same model", where=self._where())
        self._labels.update({each.label: self._version for each in found})
        self._found = found[0]
        return found[0]

    async def _events(
        self, client: httpx.AsyncClient, body: Mapping[str, object]
    ) -> AsyncGenerator[Event]:
        """Post a request and read its events."""
        try:
            async with client.stream("POST", "/inference/v1/generate", json=body) as response:
                self._streams.add(response)
                try:
                    await raise_for_status(response)
                    async for line in response.aiter_lines():
                        if (event := read_event(line)) is not None:
                            yield event
                finally:
                    self._streams.discard(response)
        except (httpx.HTTPError, httpx.StreamError) as error:
            if self._closed:
                raise EngineError("the engine was closed") from error
            raise unreachable(client, error) from error

    def _by_version(self, held: Event, given: int, began_with: int) -> list[Chunk]:
        """Cut the rest of a reply into chunks of one weight version each, by the server's spans."""
        total = given + len(held.token_ids)
        if any(self._known(span) != began_with for span in spread(held.spans, 0, given)):
            raise EngineError(
                "the server's weights changed behind the engine's back", where=self._where()
            )
        spans = list(spread(held.spans, given, total)) or [Span("", given, total)]
        return [
            Chunk(
                token_ids=held.token_ids[span.start - given : span.end - given],
                logprobs=held.logprobs[span.start - given : span.end - given],
                weight_version=self._known(span) if span.label else self._version,
                finish_reason=held.finish_reason if span is spans[-1] else None,
            )
            for span in spans
        ]

    def _known(self, span: Span) -> int:
        try:
            return self._labels[span.label]
        except KeyError:
            raise EngineError(
                f"tokens were sampled by unknown weights '{span.label}'", where=self._where()
            ) from None

    def _client_for(self, request: SampleRequest) -> httpx.AsyncClient:
        if request.affinity:
            digest = hashlib.sha256(request.affinity.encode()).digest()
            turn = int.from_bytes(digest[:8], "big")
        else:
            turn = next(self._turns)
        return self._clients[turn % len(self._clients)]

    async def _tell(self, path: str, body: Mapping[str, object] | None = None) -> None:
        """Post a command to every server."""
        for client in self._clients:
            try:
                response = await client.post(
                    path, json=body, timeout=self.settings.update_timeout_s
                )
            except httpx.HTTPError as error:
                raise unreachable(client, error) from error
            await raise_for_status(response)

    def _where(self) -> str:
        return ", ".join(str(client.base_url) for client in self._clients)


def _join(held: Event, event: Event) -> Event:
    """Append what a new event says to what was held back."""
    return Event(
        held.token_ids + event.token_ids,
        held.logprobs + event.logprobs,
        event.finish_reason,
        event.spans,
    )


def _certain(chunk: Chunk, sampling: Sampling) -> Chunk:
    """State the logprobs of greedy choices: they are certain, vLLM tells the model's own."""
    if sampling.temperature > 0.0:
        return chunk
    return replace(chunk, logprobs=(0.0,) * len(chunk.token_ids))


def _check(request: SampleRequest, found: Found) -> None:
    prompt_tokens = len(request.prompt_ids)
    if prompt_tokens == 0:
        raise EngineError("the prompt is empty")
    if prompt_tokens >= found.max_context:
        raise ContextOverflow(prompt_tokens=prompt_tokens, max_context=found.max_context)
    sampling = request.sampling
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise EngineError(f"max_tokens is {sampling.max_tokens}", fix="Ask for one token or more.")
    plain = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k is None
    if not (plain or found.processed or sampling.temperature == 0.0):
        raise EngineRefused(
            "the server's logprobs are not of the distribution that it samples from",
            fix="Start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1.",
        )
