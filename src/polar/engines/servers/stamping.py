"""Which weights sampled which token, by the labels that a server gives its weights."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal

from polar.engines.base import Chunk
from polar.engines.servers.connection import rest_of_stream
from polar.errors import EngineError, ServerLost, StaleWeights
from polar.types import Sampling

__all__ = [
    "Event",
    "ServerWeights",
    "Span",
    "certain",
    "read_events",
    "spread",
    "stamped",
    "weight_label",
]


@dataclass(frozen=True, slots=True)
class Span:
    """Sampled tokens `start` to before `end` are of the weights with this label."""

    label: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Event:
    """What one server-sent event says of a request: tokens that no earlier one told."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"] | None
    spans: tuple[Span, ...]
    """Of the whole reply; in the last event only."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed again (told in the first event)."""


@dataclass(slots=True)
class ServerWeights:
    """The weights of one server, as told by it and not remembered.

    Args:
        address: Of the server.
    """

    address: str
    version: int | None = 0
    """Version of the weights that the last probe or update found; None: unknown weights."""
    loads: list[int] = field(default_factory=list)
    """Versions that were loaded, in order."""
    labels: dict[str, int] = field(default_factory=dict)
    """What the server calls its weights, and their versions."""
    _seen: bool = False

    def found(self, label: str) -> None:
        """Take note of what the server calls its weights; those of the first time are version 0."""
        if not self.labels:
            self.labels[label] = 0
        elif not label and self._seen:
            self.labels.pop("", None)  # nothing tells these weights from those of the start
        self._seen = True
        self.version = self.labels.get(label)

    def follow(self, labels: Mapping[str, int], loads: Sequence[int]) -> None:
        """Take note of all that another process has seen and loaded."""
        self.labels = dict(labels) if not self._seen else self.labels
        for version in loads[len(self.loads) :]:
            self.loaded(version)

    def loaded(self, version: int) -> None:
        """Take note that the server took weights under `weight_label(version)`."""
        self.labels[weight_label(version)] = version
        self.loads.append(version)
        self.version = version

    def present(self) -> int:
        """Give the version of the present weights.

        Raises:
            StaleWeights: They are unknown.
        """
        if self.version is None:
            raise StaleWeights("the server has unknown weights", where=self.address)
        return self.version

    def known(self, span: Span) -> int:
        """Give the version of the weights that a span is of.

        Raises:
            StaleWeights: They are unknown.
        """
        try:
            return self.labels[span.label]
        except KeyError:
            raise StaleWeights(
                f"tokens were sampled by unknown weights '{span.label}'", where=self.address
            ) from None


async def read_events(
    batches: AsyncGenerator[Sequence[bytes]], read: Callable[[bytes], Event | None]
) -> AsyncGenerator[Event]:
    """Read a stream's events up to the last; lines that `read` finds nothing in are passed over.

    What has arrived together is one event: whoever is behind makes up for it with fewer steps.
    """
    async with aclosing(batches):
        async for lines in batches:
            told: Event | None = None
            try:
                for line in lines:
                    if (event := read(line)) is None:
                        continue
                    told = event if told is None else _join(told, event)
                    if event.finish_reason is not None:
                        await rest_of_stream(batches)
                        break
            except EngineError:
                if told is not None:
                    yield told  # it was sampled, whatever became of what follows
                raise
            if told is not None:
                yield told


async def stamped(events: AsyncGenerator[Event], weights: ServerWeights) -> AsyncGenerator[Chunk]:
    """Turn a reply's events into chunks of one weight version each, the last with its ending.

    Tokens that arrive after a weight update are held back until the reply ends: only then does
    the server say which of them the old weights had sampled.

    Raises:
        StaleWeights: The server has lost the weights that it was given.
        ServerLost: The events end before the reply does.
    """
    began_with, loads_before, given = weights.present(), len(weights.loads), 0
    held: Event | None = None
    async with aclosing(events):
        async for event in events:
            held = event if held is None else _join(held, event)
            if event.finish_reason is not None:
                _check_spans(
                    weights, held.spans, given, (began_with, *weights.loads[loads_before:])
                )
                for chunk in _by_version(weights, held, given, began_with):
                    yield chunk
                return
            if weights.version == began_with:
                given += len(held.token_ids)
                chunk = Chunk(held.token_ids, held.logprobs, began_with, None, held.cached_tokens)
                held = None
                yield chunk
    raise ServerLost("the server's stream ended before the reply did", where=weights.address)


def certain(chunk: Chunk, sampling: Sampling) -> Chunk:
    """State the logprobs of greedy choices: they are certain, servers tell the model's own."""
    if sampling.temperature > 0.0:
        return chunk
    return replace(chunk, logprobs=(0.0,) * len(chunk.token_ids))


def spread(spans: Sequence[Span], start: int, end: int) -> Iterator[Span]:
    """Cut the spans to the tokens from `start` to before `end`."""
    for span in spans:
        low, high = max(span.start, start), min(span.end, end)
        if low < high:
            yield Span(span.label, low, high)


def weight_label(version: int) -> str:
    """Name a weight version for the server."""
    return f"polar-{version}"


def _join(held: Event, event: Event) -> Event:
    """Append what a new event says to what was held back."""
    return Event(
        held.token_ids + event.token_ids,
        held.logprobs + event.logprobs,
        event.finish_reason,
        event.spans,
        held.cached_tokens or event.cached_tokens,
    )


def _check_spans(
    weights: ServerWeights, spans: Sequence[Span], given: int, allowed: Sequence[int]
) -> None:
    """See that only allowed weights have sampled, and what was given only the first of them.

    Raises:
        StaleWeights: The server was started anew, or somebody else updated it.
    """
    late = {weights.known(span) for span in spans}
    early = {weights.known(span) for span in spread(spans, 0, given)}
    if not (late <= set(allowed) and early <= {allowed[0]}):
        raise StaleWeights(
            "the server's weights changed behind the engine's back", where=weights.address
        )


def _by_version(
    weights: ServerWeights, held: Event, given: int, began_with: int
) -> Iterator[Chunk]:
    """Cut the rest of a reply into chunks of one weight version each, by the server's spans."""
    total = given + len(held.token_ids)
    spans = list(spread(held.spans, given, total)) or [Span("", given, total)]
    for span in spans:
        yield Chunk(
            token_ids=held.token_ids[span.start - given : span.end - given],
            logprobs=held.logprobs[span.start - given : span.end - given],
            weight_version=weights.known(span) if span.label else began_with,
            finish_reason=held.finish_reason if span is spans[-1] else None,
            cached_tokens=held.cached_tokens if span is spans[0] else 0,
        )
