"""vLLM servers: token ids in and out over HTTP.

Written against vLLM 0.32, started as

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs

The scale-out endpoints take and return token ids; the logprobs mode makes the logprobs those of the
distribution that is sampled from; the development mode serves pausing and weight updates.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.engines.servers import Connection, ReplicatedEngine, ServerKind, check_request
from polar.engines.settings import VllmSettings
from polar.engines.vllm_probe import Found, probe_server
from polar.engines.vllm_wire import Event, Span, generate_body, read_event, spread, weight_label
from polar.errors import EngineError, EngineRefused, ServerLost, StaleWeights
from polar.types import Sampling

__all__ = ["VllmEngine", "VllmServer"]

_KIND = ServerKind(
    name="vLLM",
    missing="Check that vLLM runs there, and engine.settings.model; pausing and weight updates "
    "need vLLM to be started with VLLM_SERVER_DEV_MODE=1.",
    forbidden="Start vLLM 0.32 or newer with --enable-scale-out.",
)

_REST_S = 0.5


class VllmEngine(ReplicatedEngine):
    """Samples from vLLM servers that all serve the same model.

    Args:
        settings: Addresses, and all else.
    """

    def __init__(self, settings: VllmSettings | None = None) -> None:
        self.settings = settings or VllmSettings()
        servers = [VllmServer(url, self.settings) for url in self.settings.urls]
        super().__init__(servers, self.settings)


class VllmServer:
    """Samples from one vLLM server. Closing a stream closes its connection: vLLM then aborts it.

    Args:
        address: Of the server.
        settings: All else.
    """

    def __init__(self, address: str, settings: VllmSettings) -> None:
        self.address = address
        self._settings = settings
        self._connection = Connection(address, settings, _KIND)
        self._found: Found | None = None
        self._labels: dict[str, int] = {}
        self._version: int | None = 0
        self._loads: list[int] = []

    @property
    def weight_version(self) -> int | None:
        """Version of the weights that the last probe or update found; None: unknown weights."""
        return self._version

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        """Stream a continuation of `prompt_ids`; closing the iterator cancels the generation.

        Tokens that arrive after a weight update are held back until the reply ends: only then does
        the server say which of them the old weights had sampled.

        Raises:
            ContextOverflow: The prompt leaves no room for one token.
            EngineRefused: The server's logprobs are not of the distribution to be sampled from.
            StaleWeights: The server has lost the weights that it was given.
            EngineError: The server failed or cannot be reached.
        """
        found = self._found or await self._probe()
        began_with = self._version
        if began_with is None:
            raise StaleWeights("the server has unknown weights", where=self.address)
        _check(request, found)
        body = generate_body(
            request, model=request.model or found.model, max_context=found.max_context
        )
        given, loads_before = 0, len(self._loads)
        held = Event((), (), None, ())
        async with aclosing(self._events(body)) as events:
            async for event in events:
                held = _join(held, event)
                if event.finish_reason is not None:
                    self._check_spans(held.spans, given, began_with, self._loads[loads_before:])
                    for chunk in self._by_version(held, given, began_with):
                        yield _certain(chunk, request.sampling)
                    return
                if self._version == began_with:
                    given += len(held.token_ids)
                    chunk = Chunk(held.token_ids, held.logprobs, began_with)
                    held = Event((), (), None, ())
                    yield _certain(chunk, request.sampling)
        raise ServerLost("the server's stream ended before the reply did", where=self.address)

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

    async def check(self) -> None:
        """Ask whether the server's engine runs."""
        await self._connection.check("/health")

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
        self._labels[weight_label(version)] = version
        self._loads.append(version)
        self._version = version

    async def drop_streams(self) -> None:
        """Hang up on all running requests."""
        await self._connection.drop_streams()

    async def aclose(self) -> None:
        """Close all connections; open streams end with `EngineError`."""
        await self._connection.aclose()

    async def _probe(self) -> Found:
        found = await probe_server(self._connection, self._settings.model)
        if not self._labels:
            self._labels[found.label] = 0
        elif not found.label:
            self._labels.pop("", None)  # nothing tells these weights from those of the start
        self._found = found
        self._version = self._labels.get(found.label)
        return found

    async def _events(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """Post a request and read its events."""
        async with aclosing(self._connection.lines("/inference/v1/generate", body)) as lines:
            async for line in lines:
                if (event := read_event(line)) is None:
                    continue
                if event.finish_reason is not None:
                    await _finish(lines)
                yield event

    def _check_spans(
        self, spans: Sequence[Span], given: int, began_with: int, loaded: Sequence[int]
    ) -> None:
        """See that only weights that Polar gave have sampled, and what was given only the first.

        Raises:
            StaleWeights: The server was started anew, or somebody else updated it.
        """
        late = {self._known(span) for span in spans}
        early = {self._known(span) for span in spread(spans, 0, given)}
        if not (late <= {began_with, *loaded} and early <= {began_with}):
            raise StaleWeights(
                "the server's weights changed behind the engine's back", where=self.address
            )

    def _by_version(self, held: Event, given: int, began_with: int) -> list[Chunk]:
        """Cut the rest of a reply into chunks of one weight version each, by the server's spans."""
        total = given + len(held.token_ids)
        spans = list(spread(held.spans, given, total)) or [Span("", given, total)]
        return [
            Chunk(
                token_ids=held.token_ids[span.start - given : span.end - given],
                logprobs=held.logprobs[span.start - given : span.end - given],
                weight_version=self._known(span) if span.label else began_with,
                finish_reason=held.finish_reason if span is spans[-1] else None,
            )
            for span in spans
        ]

    def _known(self, span: Span) -> int:
        try:
            return self._labels[span.label]
        except KeyError:
            raise StaleWeights(
                f"tokens were sampled by unknown weights '{span.label}'", where=self.address
            ) from None

    async def _tell(self, path: str, body: Mapping[str, object] | None = None) -> None:
        await self._connection.post(path, body, timeout_s=self._settings.update_timeout_s)


async def _finish(lines: AsyncIterator[bytes]) -> None:
    """Read what is left of a stream that said its last, so that its connection can be used again.

    It was sent together with the last event, so there is nothing to wait for.
    """
    with suppress(TimeoutError, EngineError):
        async with asyncio.timeout(_REST_S):
            async for _ in lines:
                pass


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
    check_request(request, found.max_context)
    sampling = request.sampling
    plain = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k is None
    if not (plain or found.processed or sampling.temperature == 0.0):
        raise EngineRefused(
            "the server's logprobs are not of the distribution that it samples from",
            fix="Start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1.",
        )
