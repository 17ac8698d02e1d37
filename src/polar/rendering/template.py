"""A chat template, and what it turns out to do when asked: found by rendering probes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from polar.errors import BadRequest, ModelMissing
from polar.rendering.function_form import call_fields, tool_fields
from polar.rendering.hermes import call_opening, call_text, tools_section
from polar.rendering.parsing import HermesParser
from polar.rendering.tokenizer import Tokenizer, encode
from polar.types import Message, ToolCall, ToolSpec

__all__ = ["ChatTemplate", "Traits"]

_USER = "Polar probe: question"
_REPLY = "Polar probe: reply"
_RESULT = "Polar probe: result"
_THOUGHT = "Polar probe: thought"
_TOOL = ToolSpec("polar_probe", "A probe.", {"type": "object", "properties": {}})
_CALL = ToolCall("call000aa", "polar_probe", '{"probe": "yes"}')


@dataclass(frozen=True, slots=True)
class Traits:
    """What a chat template does."""

    tools: bool
    """It shows tools, and calls in the Hermes form; otherwise both are written into the text."""
    tool_role: bool
    """It renders messages of role `tool`; otherwise they become `<tool_response>` of the user."""
    system_role: bool
    """It renders a system message; otherwise that goes before the first user message."""
    reasoning: bool
    """It renders `reasoning_content`."""
    knows_think: bool
    """Template or vocabulary have `<think>`."""
    starts_thinking: bool
    """Its generation prompt ends in an open `<think>`."""
    opens_calls: bool
    """Calls are written as `call_opening` begins them."""
    silence: str
    """What follows its generation prompt in a turn without reasoning."""
    end_of_turn: str | None
    """Text of the special token that closes an assistant turn, if one does."""


class ChatTemplate:
    """Messages to prompt text by the tokenizer's own template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Probe the template.

        Raises:
            ModelMissing: The tokenizer has no chat template, or it renders no conversation.
        """
        if not tokenizer.chat_template:
            raise ModelMissing(
                "the tokenizer has no chat template", fix="Use an instruct or chat model."
            )
        self._tokenizer = tokenizer
        self.traits = self._probe()

    def text(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generate: bool
    ) -> str:
        """Render a conversation.

        Args:
            messages: The conversation.
            tools: Tools to show to the model.
            generate: Whether to end in the generation prompt.

        Raises:
            BadRequest: The template refuses the conversation.
        """
        shown = self._with_tools(messages, tools)
        options = (
            {"tools": [tool_fields(tool) for tool in tools]} if tools and self.traits.tools else {}
        )
        return self._apply([self._message(message) for message in shown], generate, **options)

    def _apply(self, messages: list[dict[str, Any]], generate: bool, **options: Any) -> str:
        from jinja2 import TemplateError

        try:
            rendered = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generate, **options
            )
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise BadRequest(
                f"the model's chat template cannot render this conversation: {error}",
                where="messages",
            ) from error
        return str(rendered)

    def _with_tools(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Sequence[Message]:
        """Write tools, and a system message that the template refuses, into the text."""
        rest = list(messages)
        opening = []
        if rest and rest[0].role == "system":
            opening.append(rest.pop(0).content)
        if tools and not self.traits.tools:
            opening.append(tools_section(tools))
        if not opening:
            return rest
        text = "\n\n".join(part for part in opening if part)
        if self.traits.system_role:
            return [Message("system", text), *rest]
        if rest and rest[0].role == "user":
            return [Message("user", f"{text}\n\n{rest[0].content}"), *rest[1:]]
        return [Message("user", text), *rest]

    def _message(self, message: Message) -> dict[str, Any]:
        match message.role:
            case "assistant":
                return self._assistant(message)
            case "tool" if not self.traits.tool_role:
                text = f"<tool_response>\n{message.content}\n</tool_response>"
                return {"role": "user", "content": text}
            case "tool":
                fields: dict[str, Any] = {"role": "tool", "content": message.content}
                if message.tool_call_id is not None:
                    fields["tool_call_id"] = message.tool_call_id
                if message.name is not None:
                    fields["name"] = message.name
                return fields
            case _:
                return {"role": message.role, "content": message.content}

    def _assistant(self, message: Message) -> dict[str, Any]:
        fields: dict[str, Any] = {"role": "assistant", "content": message.content}
        if message.reasoning and self.traits.reasoning:
            fields["reasoning_content"] = message.reasoning
        elif message.reasoning and self.traits.knows_think:
            fields["content"] = f"<think>\n{message.reasoning}\n</think>\n\n{message.content}"
        if message.tool_calls and self.traits.tools:
            fields["tool_calls"] = [call_fields(call) for call in message.tool_calls]
        elif message.tool_calls:
            blocks = [call_text(call) for call in message.tool_calls]
            content = fields["content"]
            fields["content"] = "\n".join([content, *blocks] if content else blocks)
        return fields

    def _probe(self) -> Traits:
        user = {"role": "user", "content": _USER}
        try:
            plain = self._apply([user, {"role": "assistant", "content": _REPLY}], False)
            prompt = self._apply([user], True)
        except BadRequest as error:
            raise ModelMissing(
                "the chat template renders no plain conversation", fix="Use a chat model."
            ) from error
        thought = {"role": "assistant", "content": _REPLY, "reasoning_content": _THOUGHT}
        called = {"role": "assistant", "content": "", "tool_calls": [call_fields(_CALL)]}
        asked = {"role": "assistant", "content": _REPLY}
        answer = {"role": "tool", "content": _RESULT, "tool_call_id": _CALL.id}
        shown = {"tools": [tool_fields(_TOOL)]}
        tools = self._shows([user], _TOOL.name, **shown) and self._calls_hermes(user, called)
        template = str(self._tokenizer.chat_template)
        return Traits(
            tools=tools,
            tool_role=self._shows([user, called if tools else asked, answer], _RESULT),
            system_role=self._shows([{"role": "system", "content": _THOUGHT}, user], _THOUGHT),
            reasoning=self._shows([user, thought], _THOUGHT),
            knows_think="<think>" in template or "<think>" in self._tokenizer.get_vocab(),
            starts_thinking=prompt.rstrip().endswith("<think>"),
            opens_calls=not tools or self._shows([user, called], call_opening(_CALL.name), **shown),
            silence=self._silence(user, prompt, plain),
            end_of_turn=self._end_of_turn(plain),
        )

    def _silence(self, user: dict[str, Any], prompt: str, plain: str) -> str:
        """Find how a turn without reasoning begins: as the template generates or writes one."""
        silent = self._apply([user], True, enable_thinking=False)
        if silent.startswith(prompt) and silent != prompt:
            return silent[len(prompt) :]
        if plain.startswith(prompt) and _REPLY in plain:
            return plain[len(prompt) : plain.index(_REPLY)]
        if not prompt.rstrip().endswith("<think>"):
            return ""
        return "\n</think>\n\n" if prompt.endswith("\n") else "\n\n</think>\n\n"

    def _shows(self, messages: list[dict[str, Any]], wanted: str, **options: Any) -> bool:
        try:
            return wanted in self._apply(messages, False, **options)
        except BadRequest:
            return False

    def _calls_hermes(self, user: dict[str, Any], called: dict[str, Any]) -> bool:
        """Whether the template writes calls so that the parser reads them back."""
        try:
            text = self._apply([user, called], False, tools=[tool_fields(_TOOL)])
        except BadRequest:
            return False
        reply = text[text.rfind("<tool_call>") :] if "<tool_call>" in text else ""
        calls = _parse(reply).tool_calls
        return [(call.name, json.loads(call.arguments)) for call in calls] == [
            (_CALL.name, json.loads(_CALL.arguments))
        ]

    def _end_of_turn(self, plain: str) -> str | None:
        tail = plain[plain.index(_REPLY) + len(_REPLY) :] if _REPLY in plain else ""
        special = self._tokenizer.added_tokens_decoder
        for token_id in encode(self._tokenizer, tail):
            if token_id in special:
                return str(special[token_id].content)
        return None


def _parse(text: str) -> Message:
    decode: Callable[[Sequence[int]], str] = lambda ids: "".join(map(chr, ids))  # noqa: E731
    parser = HermesParser(decode=decode, stop_token_ids=(), new_tool_call_id=lambda: "probe")
    parser.feed([ord(character) for character in text])
    return parser.finish()[1]
