"""Model families that the `renderers` package knows token by token."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from polar.errors import BadRequest
from polar.rendering.base import IncrementalParser
from polar.rendering.bytelevel import ByteDecoder
from polar.rendering.function_form import call_fields, tool_fields
from polar.rendering.hermes import call_opening, parse_call
from polar.rendering.parsing import HermesParser
from polar.rendering.sections import PROBE, SectionParser
from polar.rendering.tokenizer import Tokenizer, decoder_of, encode, fingerprint
from polar.types import (
    Delta,
    Message,
    ReasoningDelta,
    TextDelta,
    TokenIds,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStart,
    ToolSpec,
)

__all__ = ["FamilyRenderer", "WholeReplyParser"]

_REPLY = "Polar probe: reply"
_HERMES_FAMILIES = frozenset({"qwen3"})
"""Families whose replies are of the Hermes form, so that they can be parsed as they stream."""

_OPENERS = {
    "deepseek-v3": "<",
    "glm-4.5": "",
    "glm-5": "",
    "glm-5.1": "",
    "glm-5.3": "",
    "llama-3": "{",
    "minimax-m2": "",
    "nemotron-3": "",
    "nemotron-3-ultra": "",
    "nemotron-3.5": "",
    "qwen3-vl": "",
    "qwen3.5": "",
    "qwen3.6": "",
    "qwen3.8": "",
}
"""Families whose text flows before a reply is whole -> with what content begins that may prove to
be no content: a tool call, or reasoning, that no added token opens."""


class FamilyRenderer:
    """Wraps a renderer of the `renderers` package."""

    def __init__(self, tokenizer: Tokenizer, family: str) -> None:
        """Make the family's renderer.

        Raises:
            ValueError: The package has no such family, or the tokenizer lacks its tokens.
        """
        from renderers import config_from_name, create_renderer

        self._tokenizer = tokenizer
        self._decode = decoder_of(tokenizer)
        self._family = family
        self._renderer: Any = create_renderer(tokenizer, config_from_name(family))
        self._stops = tuple(self._renderer.get_stop_token_ids())
        self._fingerprint = fingerprint(tokenizer)
        self._marks = frozenset(map(int, tokenizer.added_tokens_decoder))
        self._probe = encode(tokenizer, PROBE)
        # Elsewhere the text of ids depends on what stands before them.
        bytewise = isinstance(self._decode, ByteDecoder)
        self._openers = _OPENERS.get(family) if bytewise else None
        self._prompt = self.render([Message("user", "Polar probe")], ())
        """Any prompt: its end tells the parser whether the reply starts inside reasoning."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""
        return self._stops

    @property
    def fingerprint(self) -> str:
        """Hash of vocabulary and chat template."""
        return self._fingerprint

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Render a whole conversation, ending in the generation prompt.

        Raises:
            BadRequest: The family cannot express the conversation.
        """
        return self._ids(messages, tools, generate=True)

    def reply_ids(self, reply: Message) -> list[int]:
        """Ids that a model would sample to give this reply; see `Renderer.reply_ids`.

        Raises:
            BadRequest: The family cannot express the reply.
        """
        question = Message("user", "Polar probe")
        asked = self._ids([question], (), generate=True)
        whole = self._ids([question, reply], (), generate=False)
        ends = [at for at in range(len(asked), len(whole)) if whole[at] in self._stops]
        if not ends or whole[: len(asked)] != asked:
            raise BadRequest(
                f"the model family {self._family} has no assistant turn of its own to fill"
            )
        return whole[len(asked) : ends[0] + 1]

    def _ids(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generate: bool
    ) -> list[int]:
        try:
            ids = self._renderer.render_ids(
                [_message(message) for message in messages],
                tools=[tool_fields(tool) for tool in tools] or None,
                add_generation_prompt=generate,
            )
        except (ValueError, TypeError, KeyError) as error:
            raise BadRequest(
                f"the model family {self._family} cannot render this conversation: {error}",
                where="messages",
            ) from error
        return list(ids)

    def bridge(
        self,
        previous_ids: TokenIds,
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        prompt_tokens: int = 0,
    ) -> list[int] | None:
        """Tokens for the next turn, by the family's own bridge; see `Renderer.bridge`."""
        previous = [int(token_id) for token_id in previous_ids]
        bridged = self._renderer.bridge_to_next_turn(
            previous[:prompt_tokens],
            previous[prompt_tokens:],
            [_message(message) for message in new_messages],
            tools=[tool_fields(tool) for tool in tools] or None,
        )
        if bridged is None or list(bridged.token_ids[: len(previous)]) != previous:
            return None
        return list(bridged.token_ids[len(previous) :])

    def parser(
        self,
        tools: Sequence[ToolSpec],
        *,
        new_tool_call_id: Callable[[], str],
        calls_flow: bool = False,
    ) -> IncrementalParser:
        """Start parsing one reply."""
        if self._family in _HERMES_FAMILIES:
            return HermesParser(
                decode=self.decode,
                stop_token_ids=self._stops,
                new_tool_call_id=new_tool_call_id,
                thinks=True,
                starts_thinking=self.decode(self._prompt).rstrip().endswith("<think>"),
                calls_flow=calls_flow,
            )
        parse = partial(
            self._renderer.parse_response,
            tools=[tool_fields(tool) for tool in tools] or None,
            prompt_ids=self._prompt,
        )
        whole = WholeReplyParser(parse, self.decode, new_tool_call_id)
        if self._openers is None:
            return whole
        return SectionParser(
            whole,
            parse,
            decode=self.decode,
            marks=self._marks,
            probe=self._probe,
            openers=self._openers,
        )

    def call_opening(self, name: str | None) -> list[int] | None:
        """Ids that begin a call, for families of the Hermes form; see `OpensCalls`."""
        if self._family not in _HERMES_FAMILIES:
            return None
        silence, _, _ = self.decode(self.reply_ids(Message("assistant", _REPLY))).partition(_REPLY)
        return encode(self._tokenizer, silence + call_opening(name))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""
        return self._decode(token_ids)


class WholeReplyParser:
    """Parses a reply when it is whole: the package's parsers do not work on parts."""

    def __init__(
        self,
        parse: Callable[[list[int]], Any],
        decode: Callable[[Sequence[int]], str],
        new_tool_call_id: Callable[[], str],
    ) -> None:
        self._parse = parse
        self._decode = decode
        self._new_tool_call_id = new_tool_call_id
        self._ids: list[int] = []

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Take more sampled ids; nothing is certain before the end."""
        self._ids.extend(token_ids)
        return []

    def finish(self) -> tuple[list[Delta], Message]:
        """Return the whole reply, as deltas and as a message."""
        from renderers import ToolCallParseStatus

        parsed = self._parse(self._ids)
        calls, broken = [], []
        for attempt in parsed.tool_calls:
            if attempt.status == ToolCallParseStatus.OK:
                call_id = self._new_tool_call_id()
                calls.append(ToolCall(call_id, attempt.name, _arguments(attempt)))
            else:
                broken.append(self._as_sampled(attempt))
        message = Message(
            role="assistant",
            content="\n".join(part for part in [parsed.content, *broken] if part),
            reasoning=parsed.reasoning_content or None,
            tool_calls=tuple(calls),
        )
        return _deltas(message), message

    def _as_sampled(self, attempt: Any) -> str:
        if attempt.token_span is None:
            return str(attempt.raw)
        start, end = attempt.token_span
        return self._decode(self._ids[start:end])


def _arguments(attempt: Any) -> str:
    """JSON text of a call's arguments: as sampled where the form is JSON, else written anew."""
    as_sampled = parse_call(attempt.raw)
    if as_sampled is not None:
        return as_sampled[1]
    if isinstance(attempt.arguments, str):
        return attempt.arguments
    return json.dumps(attempt.arguments, ensure_ascii=False)


def _deltas(message: Message) -> list[Delta]:
    deltas: list[Delta] = []
    if message.reasoning:
        deltas.append(ReasoningDelta(message.reasoning))
    if message.content:
        deltas.append(TextDelta(message.content))
    for index, call in enumerate(message.tool_calls):
        deltas.append(ToolCallStart(index, call.id, call.name))
        deltas.append(ToolArgumentsDelta(index, call.arguments))
    return deltas


def _message(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [call_fields(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        fields["name"] = message.name
    return fields
