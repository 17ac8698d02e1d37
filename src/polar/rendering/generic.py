"""The renderer for any model with a chat template."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polar.errors import BadRequest
from polar.rendering.base import IncrementalParser
from polar.rendering.hermes import call_opening
from polar.rendering.parsing import HermesParser
from polar.rendering.template import ChatTemplate
from polar.rendering.tokenizer import Tokenizer, decoder_of, encoder_of, fingerprint
from polar.types import Message, TokenIds, ToolCall, ToolSpec

__all__ = ["GenericRenderer"]

_QUESTION = Message("user", "Polar bridge: question")
_REPLY = "Polar bridge: reply"
_THOUGHT = "Polar bridge: thought"
_CLOSED_TURNS_KEPT = 64


class GenericRenderer:
    """Renders by the tokenizer's chat template, bridges by the difference of two renderings.

    Where the template ignores tools, they are described in the system message and calls are
    written as Hermes blocks in the text; the parser reads the same form.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Probe the tokenizer's template.

        Raises:
            ModelMissing: The tokenizer has no usable chat template.
        """
        self._tokenizer = tokenizer
        self._decode = decoder_of(tokenizer)
        self._encode = encoder_of(tokenizer)
        self._template = ChatTemplate(tokenizer)
        self._fingerprint = fingerprint(tokenizer)
        self._end_of_turn_id = self._find_end_of_turn()
        self._closed: dict[Message, str] = {}
        ends = (self._end_of_turn_id, tokenizer.eos_token_id)
        self._stops = tuple(dict.fromkeys(end for end in ends if end is not None))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn: the template's and the tokenizer's."""
        return self._stops

    @property
    def fingerprint(self) -> str:
        """Hash of vocabulary and chat template."""
        return self._fingerprint

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Render a whole conversation, ending in the generation prompt.

        Raises:
            BadRequest: The template cannot express the conversation.
        """
        return self._encode(self._template.text(messages, tools, generate=True))

    def reply_ids(self, reply: Message) -> list[int]:
        """Ids that a model would sample to give this reply; see `Renderer.reply_ids`.

        Raises:
            BadRequest: The template cannot express the reply, or does not end its turns.
        """
        asked = self._template.text([_QUESTION], (), generate=True)
        whole = self._template.text([_QUESTION, reply], (), generate=False)
        end = self._template.traits.end_of_turn
        cut = whole.find(end, len(asked)) if end is not None else -1
        if end is None or cut < 0 or not whole.startswith(asked):
            raise BadRequest("the chat template has no assistant turn of its own to fill")
        return self._encode(whole[len(asked) : cut + len(end)])

    def bridge(
        self,
        previous_ids: TokenIds,
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        prompt_tokens: int = 0,
    ) -> list[int] | None:
        """Render what follows the end of an assistant turn; see `Renderer.bridge`.

        A stand-in conversation is rendered up to the end of its assistant turn, and again with
        the new messages after it. The second must begin with the first, or the template rewrites
        history and there is no bridge.
        """
        end = self._template.traits.end_of_turn
        if end is None or self._end_of_turn_id is None or not len(previous_ids):
            return None
        delta = self._after_turn(new_messages, tools, end)
        if delta is None:
            return None
        # Encoded with the token before it: special tokens may swallow white space around them.
        ids = self._encode(end + delta)
        if ids[0] != self._end_of_turn_id:
            return None
        sampled = previous_ids[prompt_tokens:]
        closed = len(sampled) > 0 and sampled[-1] == self._end_of_turn_id
        return ids[1:] if closed else ids

    def parser(
        self,
        tools: Sequence[ToolSpec],
        *,
        new_tool_call_id: Callable[[], str],
        calls_flow: bool = False,
    ) -> IncrementalParser:
        """Start parsing one reply."""
        return HermesParser(
            decode=self.decode,
            stop_token_ids=self._stops,
            new_tool_call_id=new_tool_call_id,
            thinks=self._template.traits.knows_think,
            starts_thinking=self._template.traits.starts_thinking,
            calls_flow=calls_flow,
        )

    def call_opening(self, name: str | None) -> list[int] | None:
        """Ids that begin a call in the Hermes form; see `OpensCalls`."""
        traits = self._template.traits
        if not traits.opens_calls:
            return None
        prompt = self._template.text([_QUESTION], (), generate=True)
        before = self._encode(prompt)
        ids = self._encode(prompt + traits.silence + call_opening(name))
        return ids[len(before) :] if ids[: len(before)] == before else None

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""
        return self._decode(token_ids)

    def _after_turn(
        self, new_messages: Sequence[Message], tools: Sequence[ToolSpec], end: str
    ) -> str | None:
        """Text between an assistant turn's end and the next generation; None if not stable.

        A template that does not show tools has them in the conversation's first message, far
        before the turn: they are left out here, and what was rendered for a turn serves again.
        """
        native = self._template.traits.tools
        turn = _stand_in(new_messages, think=self._template.traits.reasoning, ids=native)
        shown = tools if native else ()
        try:
            closed = None if native else self._closed.get(turn)
            if closed is None:
                closed = self._closed_turn(turn, shown, end)
            after = self._template.text([_QUESTION, turn, *new_messages], shown, generate=True)
        except BadRequest:
            return None
        if not native and len(self._closed) < _CLOSED_TURNS_KEPT:
            self._closed[turn] = closed
        return after[len(closed) :] if closed and after.startswith(closed) else None

    def _closed_turn(self, turn: Message, tools: Sequence[ToolSpec], end: str) -> str:
        """Render up to an assistant turn's end; nothing if the template rewrites what it asked."""
        asked = self._template.text([_QUESTION], tools, generate=True)
        before = self._template.text([_QUESTION, turn], tools, generate=False)
        cut = before.find(end, before.index(_REPLY)) if _REPLY in before else -1
        closed = before[: cut + len(end)] if cut >= 0 else ""
        return closed if closed.startswith(asked) else ""

    def _find_end_of_turn(self) -> int | None:
        text = self._template.traits.end_of_turn
        ids = self._encode(text) if text is not None else []
        return ids[0] if len(ids) == 1 else None


def _stand_in(new_messages: Sequence[Message], *, think: bool, ids: bool) -> Message:
    """An assistant turn that the new messages may follow: it calls the tools they answer.

    Args:
        new_messages: What follows.
        think: Whether the turn reasons.
        ids: Whether its calls have the ids that are answered, and not always the same ones.
    """
    answered = []
    for message in new_messages:
        if message.role != "tool":
            break
        answered.append(message)
    return Message(
        role="assistant",
        content=_REPLY,
        reasoning=_THOUGHT if think else None,
        tool_calls=tuple(
            ToolCall(
                (ids and message.tool_call_id) or f"call{index:05}", message.name or "tool", "{}"
            )
            for index, message in enumerate(answered)
        ),
    )
