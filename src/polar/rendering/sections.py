"""Lets the text of a reply flow whose form can only be parsed when it is whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from polar.rendering.base import IncrementalParser
from polar.rendering.parsing import Decode, Detokenizer, joined
from polar.types import Delta, Message, ReasoningDelta, TextDelta

__all__ = ["PROBE", "ParsedText", "SectionParser"]

PROBE = "polarprobe"
"""A word that is put behind what was sampled, to see in which section it lands."""

_MOST_LOOKS = 100
"""Parses of one reply; after them the rest comes at its end."""


class ParsedText(Protocol):
    """What is read here of a parsed reply."""

    content: str
    reasoning_content: str | None


@dataclass(slots=True)
class _Section:
    """Reasoning or content, as far as it was told; white space at its beginning is form."""

    delta: type[ReasoningDelta | TextDelta]
    told: list[str] = field(default_factory=list)
    space: str = ""

    @property
    def text(self) -> str:
        return "".join(self.told)

    def add(self, text: str) -> list[Delta]:
        """Go on with a text; white space at its end waits."""
        text = self.space + text
        if not self.told:
            text = text.lstrip()
        said = text.rstrip()
        self.space = text[len(said) :]
        if not said:
            return []
        self.told.append(said)
        return [self.delta(said)]

    def grow(self, text: str) -> list[Delta]:
        """Go on until the whole is this text, which begins with what was told."""
        self.space = ""
        return self.add(text[len(self.text) :])


class SectionParser:
    """Parses a reply when it is whole, and gives its reasoning and content as they are sampled.

    Between two added tokens of the vocabulary, text goes on with the section that it is in. Which
    one that is, is seen by parsing what was sampled so far with a word behind it: after each
    added token, and where a section begins. Where the word lands in neither, it is in a tool
    call, which is held.

    Args:
        whole: Parses the whole reply.
        parse: Parses any ids, as `whole` does.
        decode: Ids to text; the ids of a text and of another behind it are the ids of both.
        marks: Ids of added tokens.
        probe: Ids of the word.
        openers: Characters with which a tool call begins that no added token opens: content that
            begins with one is held.
    """

    def __init__(
        self,
        whole: IncrementalParser,
        parse: Callable[[list[int]], ParsedText],
        *,
        decode: Decode,
        marks: Collection[int],
        probe: Sequence[int],
        openers: str = "",
    ) -> None:
        self._whole = whole
        self._parse = parse
        self._decode = decode
        self._marks = marks
        self._probe = probe
        self._openers = tuple(openers)
        self._ids: list[int] = []
        self._looks = 0
        self._reasoning = _Section(ReasoningDelta)
        self._content = _Section(TextDelta)
        self._here: _Section | None = None
        """The section that text goes on with; absent: none that flows."""
        self._detokenizer = Detokenizer(decode)
        self._look()

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Take more sampled ids and return what is certain by now."""
        self._whole.feed(token_ids)
        deltas: list[Delta] = []
        for token_id in token_ids:
            self._ids.append(token_id)
            if token_id in self._marks:
                deltas += self._look()
            elif self._here is not None:
                deltas += self._read(self._here, token_id)
        return list(joined(deltas))

    def finish(self) -> tuple[list[Delta], Message]:
        """Return what was held back, and the whole message; the deltas add up to the message."""
        deltas, message = self._whole.finish()
        reasoning = _begun(self._reasoning.text, (message.reasoning or "").lstrip())
        content = _begun(self._content.text, message.content.lstrip())
        rest: list[Delta] = []
        for section, text in ((self._reasoning, reasoning), (self._content, content)):
            if left := text[len(section.text) :]:
                rest.append(section.delta(left))
        calls = [each for each in deltas if not isinstance(each, ReasoningDelta | TextDelta)]
        return [*rest, *calls], replace(message, content=content, reasoning=reasoning or None)

    def _read(self, section: _Section, token_id: int) -> list[Delta]:
        text = self._detokenizer.push([token_id])
        if section is self._content and not section.told and self._opens(text):
            return self._hold()
        return section.add(text)

    def _look(self) -> list[Delta]:
        """See which section we are in, and catch up with it."""
        self._here = None
        if self._looks == _MOST_LOOKS:
            return []
        self._looks += 1
        parsed = self._parse([*self._ids, *self._probe])
        reasoning, content = (parsed.reasoning_content or "").lstrip(), parsed.content.lstrip()
        if reasoning.endswith(PROBE):
            return self._enter(self._reasoning, reasoning.removesuffix(PROBE), content)
        if content.endswith(PROBE):
            return self._enter(self._content, reasoning, content.removesuffix(PROBE))
        return []

    def _enter(self, section: _Section, reasoning: str, content: str) -> list[Delta]:
        begun = reasoning.startswith(self._reasoning.text) and content.startswith(
            self._content.text
        )
        if not begun or self._opens(content):
            return self._hold()
        self._here, self._detokenizer = section, Detokenizer(self._decode)
        return [*self._reasoning.grow(reasoning), *self._content.grow(content)]

    def _opens(self, content: str) -> bool:
        return content.lstrip().startswith(self._openers)

    def _hold(self) -> list[Delta]:
        """Leave the rest to the end."""
        self._here, self._looks = None, _MOST_LOOKS
        return []


def _begun(told: str, text: str) -> str:
    """Take the text of a section; what was told of it stays, whatever the whole says."""
    return text if text.startswith(told) else told
