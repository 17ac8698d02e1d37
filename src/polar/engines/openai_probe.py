"""Find out by asking what a Chat Completions server tells: ids, logprobs, tools."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

from polar.engines.openai_wire import EventReader, Form, chat_body
from polar.engines.servers import COOL, Connection, follows_temperature, reading_answers
from polar.engines.settings import OpenAISettings
from polar.errors import BadRequest, EngineError
from polar.types import Chat, Message, Sampling, ToolSpec

__all__ = ["ROUTE", "Found", "probe_server"]

ROUTE = "/v1/chat/completions"
_CHAT = Chat("probe", (Message("user", "Say hi."),))
_TOOL = ToolSpec("polar_probe", "A probe.", {"type": "object", "properties": {}})
_ALTERNATIVES = 5


@dataclass(frozen=True, slots=True)
class Found:
    """What a server is."""

    model: str
    max_context: int
    form: Form
    """How it is asked; for ids only where it tells ids and logprobs."""
    token_ids: bool
    logprobs: bool
    processed: bool
    """Whether logprobs are of the distribution after temperature."""


async def probe_server(server: Connection, settings: OpenAISettings) -> Found:
    """Probe a server with a few requests of one token.

    Raises:
        EngineError: It cannot be reached or used.
    """
    with reading_answers("Chat Completions", server.address):
        try:
            return await _probed(server, settings)
        except BadRequest as error:
            raise EngineError(error.what, where=server.address) from error


async def _probed(server: Connection, settings: OpenAISettings) -> Found:
    model, max_context = await _served(server, settings)
    asking = _Asking(server, model, Form(ids=True, limit_field=settings.limit_field))
    prompt, logprobs = await asking.told()
    if not (prompt and logprobs):
        plain = replace(asking, form=replace(asking.form, ids=False))
        await plain.told()
        found = bool(prompt)
        return Found(model, max_context, plain.form, found, logprobs, processed=False)
    form = replace(asking.form, tools=await _tools(asking, prompt))
    warm, cool = await asking.likely(1.0), await asking.likely(COOL)
    return Found(model, max_context, form, True, True, follows_temperature(warm, cool))


async def _served(server: Connection, settings: OpenAISettings) -> tuple[str, int]:
    """Look the model up in the server's list, which may tell its context window."""
    served = (await server.get("/v1/models"))["data"]
    wanted = settings.model
    entry = next((each for each in served if wanted in (None, each["id"])), None)
    if entry is None:
        named = "any model" if wanted is None else f"a model '{wanted}'"
        raise EngineError(f"the server does not serve {named}", where=server.address)
    meta = entry.get("meta") or {}
    window = settings.max_context or entry.get("max_model_len") or meta.get("n_ctx")
    if window is None:
        raise EngineError(
            "the server does not tell the model's context window",
            where=server.address,
            fix="Set engine.settings.max_context.",
        )
    return str(entry["id"]), int(window)


async def _tools(asking: _Asking, bare: tuple[int, ...]) -> Literal["auto", "none", "text"]:
    """Choose how the model is shown tools: so that its prompt changes, and Polar can parse."""
    ways: tuple[Literal["none", "auto"], ...] = ("none", "auto")
    for way in ways:
        shown = replace(asking, form=replace(asking.form, tools=way))
        try:
            prompt, _ = await shown.told(replace(_CHAT, tools=(_TOOL,)))
        except BadRequest:  # it has no parser for them
            continue
        if prompt not in ((), bare):
            return way
    return "text"


@dataclass(frozen=True, slots=True)
class _Asking:
    """Asks a server for one token."""

    server: Connection
    model: str
    form: Form

    async def told(self, chat: Chat = _CHAT) -> tuple[tuple[int, ...], bool]:
        """Give the ids of the prompt, and say whether the reply's come with logprobs.

        Raises:
            BadRequest: The server refuses the request, and not for want of ids.
        """
        prompt: tuple[int, ...] = ()
        whole = heard = False
        reader = EventReader(self.form.ids)
        try:
            async with aclosing(self.server.lines(ROUTE, self._body(chat))) as lines:
                async for batch in lines:
                    events = [event for line in batch if (event := reader.read(line)) is not None]
                    heard = heard or bool(events)
                    for event in events:
                        prompt = prompt or event.prompt_ids
                        whole = whole or 0 < len(event.token_ids) == len(event.logprobs)
        except BadRequest:
            if not self.form.ids or chat.tools:
                raise
            return (), False  # it takes no field that it does not know
        if not heard:
            raise ValueError("no event came")
        return (prompt, whole) if whole else ((), False)

    async def likely(self, temperature: float) -> dict[int, float]:
        """Give the logprobs of the likeliest first tokens by id."""
        body = self._body(_CHAT, temperature) | {
            "top_logprobs": _ALTERNATIVES,
            "return_tokens_as_token_ids": True,
        }
        answer = await self.server.post_json(ROUTE, _unstreamed(body))
        told = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        return {int(each["token"].removeprefix("token_id:")): each["logprob"] for each in told}

    def _body(self, chat: Chat, temperature: float = 1.0) -> dict[str, Any]:
        sampling = Sampling(temperature=temperature, max_tokens=1)
        return chat_body(chat, sampling, model=self.model, form=self.form, max_context=2**31)


def _unstreamed(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if not name.startswith("stream")}
