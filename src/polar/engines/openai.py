"""Servers of OpenAI's Chat Completions: conversations in; ids as they tell them, or text alone.

Written against vLLM 0.32, which tells ids (`return_token_ids`), and llama.cpp's server, which tells
none. The server makes the prompt, so what it says of it is all that is known.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.engines.openai_probe import ROUTE, Found, probe_server
from polar.engines.openai_wire import Event, EventReader, chat_body, read_refusal
from polar.engines.servers import FixedServer, ReplicatedEngine, ServerKind, certain
from polar.engines.settings import OpenAISettings
from polar.errors import (
    ContextOverflow,
    EngineError,
    EngineRefused,
    PolarError,
    ServerFailed,
    ServerLost,
)
from polar.types import Usage

__all__ = ["OpenAIEngine", "OpenAIServer"]


class OpenAIEngine(ReplicatedEngine):
    """Samples from Chat Completions servers that all serve the same model.

    Args:
        settings: Addresses, and all else.
    """

    def __init__(self, settings: OpenAISettings | None = None) -> None:
        self.settings = settings or OpenAISettings()
        servers = [OpenAIServer(url, self.settings) for url in self.settings.urls]
        super().__init__(servers, self.settings)


class OpenAIServer(FixedServer):
    """Samples from one server. Closing a stream closes its connection: that is all it is told.

    Args:
        address: Of the server; a `/v1` at its end is left out.
        settings: All else.
    """

    def __init__(self, address: str, settings: OpenAISettings) -> None:
        kind = ServerKind(
            name="an OpenAI-compatible server",
            missing="Check the address, and engine.settings.model.",
            forbidden="Set engine.settings.api_key_env.",
            read_refusal=self._refusal,
        )
        super().__init__(address.rstrip("/").removesuffix("/v1"), settings, kind)
        self._settings = settings
        self._found: Found | None = None

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        """Stream the reply to a conversation; closing the iterator cancels the generation.

        A reply that breaks off cannot go on elsewhere: no server takes half of one.

        Raises:
            BadRequest: The server refuses the conversation.
            ContextOverflow: The conversation leaves no room for one token.
            EngineRefused: The server's logprobs are not of the distribution to be sampled from.
            EngineError: The server failed, cannot be reached, or told not all that it sampled.
        """
        found = self._found or await self._probe()
        _check(request, found)
        account = _Account(self.address, found.form.ids)
        begun = False
        try:
            async with aclosing(self._events(request, found)) as events:
                async for event in events:
                    await self.wait_running()
                    account.add(event)
                    if (chunk := event.chunk()) is not None:
                        begun = True
                        yield certain(chunk, request.sampling)
            yield account.last_chunk()
        except (ServerLost, ServerFailed) as error:
            if not begun:
                raise
            raise EngineError(f"the reply broke off: {error.what}", where=self.address) from error

    async def probe(self) -> Capabilities:
        """Ask for a token in several ways, and see what is told of it.

        Raises:
            EngineRefused: Ids or logprobs are missing, and text alone is not asked for.
            EngineError: The server cannot be reached or used.
        """
        found = await self._probe()
        known = found.token_ids and found.logprobs
        if not (known or self._settings.text_only):
            raise EngineRefused(
                "the server tells no token ids or no logprobs, so nothing could be trained on",
                where=self.address,
                fix="Use a server that knows return_token_ids (vLLM does), or set "
                "engine.settings.text_only to keep the text of sessions alone.",
            )
        limits = "" if found.processed or not known else ", temperature 1 only (raw logprobs)"
        told = f"ids as told{limits}" if known else "text only"
        return Capabilities(
            model=found.model,
            max_context=found.max_context,
            token_ids=found.token_ids,
            logprobs=found.logprobs,
            weight_updates=False,
            detail=f"Chat Completions at {self.address}, {told}",
            renders=True,
        )

    async def check(self) -> None:
        """Ask whether the server is up."""
        await self._connection.check("/v1/models")

    async def _events(self, request: SampleRequest, found: Found) -> AsyncGenerator[Event]:
        """Ask; where prompt and limit together do not fit, ask for what the window leaves."""
        assert request.chat is not None
        await self.wait_running()
        body = chat_body(
            request.chat,
            request.sampling,
            model=request.model or found.model,
            form=found.form,
            max_context=found.max_context,
        )
        try:
            async with aclosing(self._read(body, found)) as events:
                async for event in events:
                    yield event
            return
        except ContextOverflow:
            if body.pop(found.form.limit_field, None) is None:
                raise
        async with aclosing(self._read(body, found)) as events:
            async for event in events:
                yield event

    async def _read(self, body: dict[str, Any], found: Found) -> AsyncGenerator[Event]:
        reader = EventReader(found.form.ids)
        async with aclosing(self._connection.lines(ROUTE, body)) as lines:
            async for batch in lines:
                for line in batch:
                    if (event := reader.read(line)) is not None:
                        yield event

    async def _probe(self) -> Found:
        self._found = await probe_server(self._connection, self._settings)
        return self._found

    def _refusal(self, status: int, body: bytes) -> PolarError | None:
        window = 0 if self._found is None else self._found.max_context
        return read_refusal(status, body, max_context=window)


@dataclass(slots=True)
class _Account:
    """What a server told of one reply, to see that it told all."""

    address: str
    ids: bool
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    finish_reason: Literal["stop", "length"] | None = None
    usage: Usage | None = None

    def add(self, event: Event) -> None:
        """Add an event.

        Raises:
            EngineError: A token came before the prompt that it was sampled after.
        """
        if event.prompt_ids and self.prompt_tokens:
            raise EngineError("the server told two prompts", where=self.address)
        self.prompt_tokens += len(event.prompt_ids)
        self.sampled_tokens += len(event.token_ids)
        self.finish_reason = event.finish_reason or self.finish_reason
        self.usage = event.usage or self.usage
        if event.token_ids and not self.prompt_tokens:
            raise EngineError(
                "the server told a token, and not the prompt before it", where=self.address
            )

    def last_chunk(self) -> Chunk:
        """Say how the reply ended.

        Raises:
            ServerLost: It did not.
            EngineError: Some of its tokens were not told.
        """
        if self.finish_reason is None:
            raise ServerLost("the stream ended before the reply did", where=self.address)
        usage = self.usage
        if not self.ids:
            return Chunk((), (), 0, self.finish_reason, usage=usage)
        told = (self.prompt_tokens, self.sampled_tokens)
        if usage is not None and (usage.prompt_tokens, usage.sampled_tokens) != told:
            raise EngineError(
                f"the server counts {usage.prompt_tokens} and {usage.sampled_tokens} tokens of"
                f" prompt and reply, and told the ids of {told[0]} and {told[1]}",
                where=self.address,
            )
        if not all(told):
            raise EngineError("the server told no ids of the reply", where=self.address)
        return Chunk((), (), 0, self.finish_reason, usage=usage)


def _check(request: SampleRequest, found: Found) -> None:
    if request.chat is None:
        raise EngineError("this engine takes conversations, not tokens")
    sampling = request.sampling
    plain = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k is None
    if found.form.ids and not (plain or found.processed or sampling.temperature == 0.0):
        raise EngineRefused(
            "the server's logprobs are not of the distribution that it samples from",
            fix="Start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1.",
        )
