"""Incremental parsing of a reply: sampled ids to reasoning, text and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

from polar.rendering.calls import CallBlock
from polar.rendering.hermes import CALL_CLOSE, CALL_OPEN
from polar.types import (
    Delta,
    Message,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStart,
)

__all__ = ["Detokenizer", "HermesParser", "joined"]

Decode = Callable[[Sequence[int]], str]

_THINK_OPEN = "<think>"
_THINK_CLOSE = "</think>"
_REPLACEMENT = "\ufffd"
_TAIL_IDS = 4


class Detokenizer:
    """Token ids to text, piece by piece, never half a character."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._told: list[int] = []
        """The last ids whose text is out; decoded again with new ones, for spaces between them."""
        self._told_text = ""
        """What they are decoded to."""
        self._held: list[int] = []

    def push(self, token_ids: Sequence[int]) -> str:
        """Take more ids and return the text that is certain by now."""
        self._held.extend(token_ids)
        if not self._held:
            return ""
        before = len(self._told_text)
        text = self._decode(self._told + self._held)
        if text.endswith(_REPLACEMENT) or len(text) <= before:
            return ""
        self._keep_tail(self._held)
        return text[before:]

    def flush(self) -> str:
        """Return the text of what was held back, with U+FFFD for broken bytes."""
        if not self._held:
            return ""
        whole = self._decode(self._told + self._held)
        text = whole[len(self._told_text) :]
        self._told, self._told_text, self._held = self._told + self._held, whole, []
        return text

    def _keep_tail(self, told: list[int]) -> None:
        """Cut what is to be decoded again to a few ids that begin with a whole character."""
        tail = told[-_TAIL_IDS:]
        text = self._decode(tail)
        if len(tail) < len(told) and (not text or text.startswith(_REPLACEMENT)):
            tail, text = told, self._decode(told)
        self._told, self._told_text, self._held = tail, text, []


class _Where(Enum):
    START = auto()
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class HermesParser:
    """Parses replies of the form `<think>…</think> text <tool_call>{json}</tool_call>…`.

    The result does not depend on how the ids were cut into chunks. White space around
    reasoning and next to tool calls is form, not content. A block that is not a valid call
    stays in the content as it was sampled; where calls flow and its call had begun, that call
    stays, with arguments that are no JSON object.
    """

    def __init__(
        self,
        *,
        decode: Decode,
        stop_token_ids: Sequence[int],
        new_tool_call_id: Callable[[], str],
        thinks: bool = False,
        starts_thinking: bool = False,
        calls_flow: bool = False,
    ) -> None:
        """Start one reply.

        Args:
            decode: Ids to text, special tokens included.
            stop_token_ids: Ids that end a turn; they have no text.
            new_tool_call_id: Makes the id of each tool call.
            thinks: Whether the model knows `<think>`; otherwise it is plain text.
            starts_thinking: Whether the prompt ended in an open `<think>`.
            calls_flow: Whether a call's arguments are given as they are sampled; otherwise a
                call is given when it is whole.
        """
        self._detokenizer = Detokenizer(decode)
        self._stops = frozenset(stop_token_ids)
        self._new_tool_call_id = new_tool_call_id
        self._where = _Where.CONTENT
        if thinks:
            self._where = _Where.REASONING if starts_thinking else _Where.START
        self._buffer = ""
        self._space = ""
        self._at_head = self._where is _Where.REASONING
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._calls_flow = calls_flow
        self._block = CallBlock(flows=calls_flow)
        self._call_id = ""
        """Of the call that has begun."""
        self._deltas: list[Delta] = []

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Take more sampled ids and return what is certain by now."""
        self._buffer += self._detokenizer.push(
            [token_id for token_id in token_ids if token_id not in self._stops]
        )
        while self._step():
            pass
        return self._take_deltas()

    def finish(self) -> tuple[list[Delta], Message]:
        """Return what was held back, and the whole message; the deltas add up to the message."""
        self._buffer += self._detokenizer.flush()
        while self._step():
            pass
        rest, self._buffer = self._buffer, ""
        match self._where:
            case _Where.REASONING:
                self._say_reasoning(rest)
            case _Where.CALL:
                self._say_call(rest)
                self._close_call("")
            case _:
                self._say(rest)
        if self._where is not _Where.REASONING and not self._calls:
            self._emit_text(self._space)
        message = Message(
            role="assistant",
            content="".join(self._content),
            reasoning="".join(self._reasoning) or None,
            tool_calls=tuple(self._calls),
        )
        return self._take_deltas(), message

    def _step(self) -> bool:
        """Consume what can be consumed; tell whether the state changed."""
        match self._where:
            case _Where.START:
                return self._step_start()
            case _Where.REASONING:
                changed = self._up_to(_THINK_CLOSE, self._say_reasoning)
                if changed:
                    self._where, self._space, self._at_head = _Where.CONTENT, "", True
            case _Where.CONTENT:
                changed = self._up_to(CALL_OPEN, self._say)
                if changed:
                    self._where, self._block = _Where.CALL, CallBlock(flows=self._calls_flow)
            case _Where.CALL:
                changed = self._up_to(CALL_CLOSE, self._say_call)
                if changed:
                    self._where = _Where.CONTENT
                    self._close_call(CALL_CLOSE)
        return changed

    def _step_start(self) -> bool:
        head = self._buffer.lstrip()
        if head.startswith(_THINK_OPEN):
            self._buffer = head.removeprefix(_THINK_OPEN)
            self._where, self._at_head = _Where.REASONING, True
            return True
        if _THINK_OPEN.startswith(head):
            return False
        self._where = _Where.CONTENT
        return True

    def _up_to(self, tag: str, say: Callable[[str], None]) -> bool:
        """Say the text before `tag`, holding back what may be its beginning; tell if it came."""
        text, found, rest = self._buffer.partition(tag)
        if not found:
            held = _overlap(text, tag)
            text, rest = text[: len(text) - held], text[len(text) - held :]
        self._buffer = rest
        say(text)
        return bool(found)

    def _say(self, text: str) -> None:
        """Add content; white space at the end waits, for a tool call may follow."""
        self._emit_text(self._hold_space(text))

    def _say_reasoning(self, text: str) -> None:
        said = self._hold_space(text)
        if said:
            self._reasoning.append(said)
            self._deltas.append(ReasoningDelta(said))

    def _hold_space(self, text: str) -> str:
        if self._at_head:
            text = text.lstrip()
            self._at_head = not text
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        return said

    def _emit_text(self, text: str) -> None:
        if text:
            self._content.append(text)
            self._deltas.append(TextDelta(text))

    def _say_call(self, text: str) -> None:
        """Take more of a block; begin its call, and give of its arguments, as far as they flow."""
        begun = self._block.name is not None
        arguments = self._block.push(text)
        if not begun and self._block.name is not None:
            self._begin_call(self._block.name)
        self._emit_arguments(arguments)

    def _close_call(self, close: str) -> None:
        """End a block, with its closing tag if it has one."""
        block, parsed = self._block, self._block.close()
        if block.name is None and parsed is None:
            self._say(CALL_OPEN + block.text + close)
            return
        if parsed is None:
            self._end_call(block.name or "", block.arguments)
            self._say(block.left())
            return
        name, arguments = parsed
        if block.name is None:
            self._begin_call(name)
        self._emit_arguments(arguments[len(block.arguments) :])
        self._end_call(name, arguments)

    def _begin_call(self, name: str) -> None:
        self._space = ""
        self._call_id = self._new_tool_call_id()
        self._deltas.append(ToolCallStart(len(self._calls), self._call_id, name))

    def _emit_arguments(self, text: str) -> None:
        if text:
            self._deltas.append(ToolArgumentsDelta(len(self._calls), text))

    def _end_call(self, name: str, arguments: str) -> None:
        self._calls.append(ToolCall(self._call_id, name, arguments))

    def _take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return list(joined(deltas))


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is a beginning of `tag`, the whole excepted."""
    if tag[0] not in text[1 - len(tag) :]:
        return 0
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0


def joined(deltas: Sequence[Delta]) -> Sequence[Delta]:
    """Join neighbours that go on with one text."""
    if len(deltas) < 2:
        return deltas
    whole = [deltas[0]]
    for delta in deltas[1:]:
        match whole[-1], delta:
            case TextDelta(text=before), TextDelta(text=text):
                whole[-1] = TextDelta(before + text)
            case ReasoningDelta(text=before), ReasoningDelta(text=text):
                whole[-1] = ReasoningDelta(before + text)
            case ToolArgumentsDelta(index=one, text=before), ToolArgumentsDelta(
                index=other, text=text
            ) if one == other:
                whole[-1] = ToolArgumentsDelta(one, before + text)
            case _:
                whole.append(delta)
    return whole
