"""The providers' own clients, asked for one turn each and told what became of it."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import httpx2
import openai
from google import genai
from google.genai import types

ANY = "*"
"""In place of the name of a tool that must be called: any of them."""

Call = tuple[str, str, dict[str, Any]]
"""Id, name and arguments."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
NAMES = ("bash", "edit")


@dataclass(frozen=True)
class Turn:
    """A reply as a client understood it."""

    content: str
    reasoning: str
    calls: list[Call]
    usage: tuple[int, int]
    """Tokens of the prompt, and sampled ones."""
    finish: str
    items: list[Any]
    """What the client puts into its history."""


class OpenAIChatClient:
    """OpenAI's client at Chat Completions."""

    finished = ("stop", "tool_calls")

    def __init__(self, url: str, http: httpx.AsyncClient, http2: httpx2.AsyncClient) -> None:
        self._client = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="-", max_retries=0, http_client=http
        )

    async def ask(
        self, key: str, history: list[Any], *, stream: bool, must: str | None = None
    ) -> Turn:
        api = self._client.with_options(api_key=key).chat.completions
        functions = [{"name": name, "parameters": SCHEMA} for name in NAMES]
        body = {
            "model": "m",
            "messages": history,
            "tools": [{"type": "function", "function": each} for each in functions],
        }
        if must == ANY:
            body["tool_choice"] = "required"
        elif must:
            body["tool_choice"] = {"type": "function", "function": {"name": must}}
        if stream:
            async with api.stream(**body, stream_options={"include_usage": True}) as events:
                try:
                    reply = await events.get_final_completion()
                except openai.LengthFinishReasonError as cut:
                    reply = cut.completion
        else:
            reply = await api.create(**body)
        (choice,) = reply.choices
        message = choice.message
        calls = [
            (call.id, call.function.name, _arguments(call.function.arguments))
            for call in message.tool_calls or ()
        ]
        return Turn(
            message.content or "",
            getattr(message, "reasoning_content", None) or "",
            calls,
            (reply.usage.prompt_tokens, reply.usage.completion_tokens),
            choice.finish_reason,
            [message.to_dict(exclude_none=True)],
        )

    def said(self, text: str) -> list[Any]:
        return [{"role": "user", "content": text}]

    def results(self, found: Sequence[tuple[Call, str, bool]]) -> list[Any]:
        return [
            {"role": "tool", "tool_call_id": call[0], "content": f"Error: {text}" if bad else text}
            for call, text, bad in found
        ]


class OpenAIResponsesClient:
    """OpenAI's client at Responses, which keeps the history itself."""

    finished = ("completed", "completed")

    def __init__(self, url: str, http: httpx.AsyncClient, http2: httpx2.AsyncClient) -> None:
        self._client = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="-", max_retries=0, http_client=http
        )

    async def ask(
        self, key: str, history: list[Any], *, stream: bool, must: str | None = None
    ) -> Turn:
        api = self._client.with_options(api_key=key).responses
        tools = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
        body = {"model": "m", "input": history, "tools": tools, "store": False}
        if must:
            named = {"type": "function", "name": must}
            body["tool_choice"] = "required" if must == ANY else named
        if stream:
            async with api.stream(**body) as events:
                # Its own `get_final_response` knows no response that was cut.
                told = [each async for each in events]
                reply = told[-1].response
        else:
            reply = await api.create(**body)
        thoughts = [item for item in reply.output if item.type == "reasoning"]
        calls = [
            (item.call_id, item.name, _arguments(item.arguments))
            for item in reply.output
            if item.type == "function_call"
        ]
        return Turn(
            reply.output_text,
            "".join(part.text for item in thoughts for part in item.content),
            calls,
            (reply.usage.input_tokens, reply.usage.output_tokens),
            reply.status,
            [item.to_dict() for item in reply.output],
        )

    def said(self, text: str) -> list[Any]:
        return [{"role": "user", "content": text}]

    def results(self, found: Sequence[tuple[Call, str, bool]]) -> list[Any]:
        kind = "function_call_output"
        return [
            {"type": kind, "call_id": call[0], "output": f"Error: {text}" if bad else text}
            for call, text, bad in found
        ]


class AnthropicClient:
    """Anthropic's client, which reads arguments and writes them anew."""

    finished = ("end_turn", "tool_use")

    def __init__(self, url: str, http: httpx.AsyncClient, http2: httpx2.AsyncClient) -> None:
        self._client = anthropic.AsyncAnthropic(
            base_url=url, api_key="-", max_retries=0, http_client=http2
        )

    async def ask(
        self, key: str, history: list[Any], *, stream: bool, must: str | None = None
    ) -> Turn:
        api = self._client.with_options(api_key=key).messages
        tools = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
        body = {"model": "m", "messages": history, "tools": tools, "max_tokens": 9999}
        if must:
            named = {"type": "tool", "name": must}
            body["tool_choice"] = {"type": "any"} if must == ANY else named
        if stream:
            async with api.stream(**body) as events:
                reply = await events.get_final_message()
        else:
            reply = await api.create(**body)
        return Turn(
            "".join(block.text for block in reply.content if block.type == "text"),
            "".join(block.thinking for block in reply.content if block.type == "thinking"),
            [(b.id, b.name, b.input) for b in reply.content if b.type == "tool_use"],
            (reply.usage.input_tokens, reply.usage.output_tokens),
            reply.stop_reason,
            [reply.to_param()],
        )

    def said(self, text: str) -> list[Any]:
        return [{"role": "user", "content": text}]

    def results(self, found: Sequence[tuple[Call, str, bool]]) -> list[Any]:
        blocks = [
            {"type": "tool_result", "tool_use_id": call[0], "content": text, "is_error": bad}
            for call, text, bad in found
        ]
        return [{"role": "user", "content": blocks}]


class GoogleClient:
    """Google's client; `forgets` is what harnesses do: no thoughts and no ids in the history."""

    finished = ("STOP", "STOP")

    def __init__(
        self,
        url: str,
        http: httpx.AsyncClient,
        http2: httpx2.AsyncClient,
        *,
        forgets: bool = False,
    ) -> None:
        self._options = types.HttpOptions(base_url=url, httpx_async_client=http)
        self._forgets = forgets

    async def ask(
        self, key: str, history: list[Any], *, stream: bool, must: str | None = None
    ) -> Turn:
        api = genai.Client(api_key=key, http_options=self._options).aio.models
        functions = [
            types.FunctionDeclaration(name=name, parameters_json_schema=SCHEMA) for name in NAMES
        ]
        config = types.GenerateContentConfig(
            tools=[types.Tool(function_declarations=functions)],
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        )
        if must:
            allowed = None if must == ANY else [must]
            calling = types.FunctionCallingConfig(mode="ANY", allowed_function_names=allowed)
            config.tool_config = types.ToolConfig(function_calling_config=calling)
        asked = {"model": "m", "contents": history, "config": config}
        if stream:
            replies = [each async for each in await api.generate_content_stream(**asked)]
        else:
            replies = [await api.generate_content(**asked)]
        parts = [part for reply in replies for part in reply.candidates[0].content.parts]
        calls = [part.function_call for part in parts if part.function_call]
        usage, finish = replies[-1].usage_metadata, replies[-1].candidates[0].finish_reason
        return Turn(
            "".join(part.text or "" for part in parts if not part.thought),
            "".join(part.text or "" for part in parts if part.thought),
            [(call.id, call.name, call.args) for call in calls],
            (usage.prompt_token_count, usage.candidates_token_count + usage.thoughts_token_count),
            finish.value,
            [types.Content(role="model", parts=self._kept(parts))],
        )

    def said(self, text: str) -> list[Any]:
        return [types.Content(role="user", parts=[types.Part(text=text)])]

    def results(self, found: Sequence[tuple[Call, str, bool]]) -> list[Any]:
        answers = [
            types.FunctionResponse(
                id=None if self._forgets else call[0],
                name=call[1],
                response={"error" if bad else "output": text},
            )
            for call, text, bad in found
        ]
        parts = [types.Part(function_response=answer) for answer in answers]
        return [types.Content(role="user", parts=parts)]

    def _kept(self, parts: list[types.Part]) -> list[types.Part]:
        if not self._forgets:
            return parts
        kept = [part.model_copy(deep=True) for part in parts if not part.thought]
        for part in kept:
            if part.function_call:
                part.function_call.id = None
        return kept


Client = OpenAIChatClient | OpenAIResponsesClient | AnthropicClient | GoogleClient
CLIENTS = {
    "openai_chat": OpenAIChatClient,
    "openai_responses": OpenAIResponsesClient,
    "anthropic_messages": AnthropicClient,
    "google_generate": GoogleClient,
}


def _arguments(text: str) -> Any:
    """Read arguments; what a model has left broken stays text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@asynccontextmanager
async def client_of(
    name: str, url: str, *, timeout_s: float = 30, **settings: Any
) -> AsyncIterator[Client]:
    """Make the client that speaks a wire format."""
    async with (
        httpx.AsyncClient(timeout=timeout_s, trust_env=False, verify=False) as http,
        httpx2.AsyncClient(timeout=timeout_s, trust_env=False, verify=False) as http2,
    ):
        yield CLIENTS[name](url, http, http2, **settings)
