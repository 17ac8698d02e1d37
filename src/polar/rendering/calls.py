"""One `<tool_call>` block as it is sampled: what of its call can be told before it is whole."""

from __future__ import annotations

import json
import re

from polar.rendering.hermes import WHITESPACE, parse_call

__all__ = ["CallBlock", "ObjectEnd"]

_SPACE = f"[{WHITESPACE}]*"
_OPENING = re.compile(
    rf'{_SPACE}\{{{_SPACE}"name"{_SPACE}:{_SPACE}("(?:[^"\\]|\\.)*"){_SPACE},'
    rf'{_SPACE}"arguments"{_SPACE}:{_SPACE}\{{',
    re.DOTALL,
)
_LONGEST_OPENING = 512
"""Characters: the opening is looked for again with each piece of text, so it has a limit."""


class CallBlock:
    """Takes the text of a block in pieces, however it was cut.

    A block that opens with `{"name": "…", "arguments": {` is a call that has begun, and its
    arguments flow. The brace that closes them is held until the whole block is known to be a
    valid call: so the arguments of a block that is none are never a JSON object. A block that
    opens otherwise is read when it is whole.

    Args:
        flows: Whether a call may begin before its block is whole.
    """

    def __init__(self, *, flows: bool) -> None:
        self._pieces: list[str] = []
        self._opening: str | None = "" if flows else None
        """What was read so far, while the call may still begin."""
        self._arguments = ObjectEnd()
        self._given: list[str] = []
        self._rest: list[str] = []
        """What stands behind the given arguments, from the brace on that closes them."""
        self.name: str | None = None
        """Name of the call that has begun, if one has."""

    @property
    def text(self) -> str:
        """All that was taken."""
        return "".join(self._pieces)

    @property
    def arguments(self) -> str:
        """What was given of the arguments of the call that has begun."""
        return "".join(self._given)

    def push(self, text: str) -> str:
        """Take more text and return what the arguments of the call go on with."""
        self._pieces.append(text)
        if self.name is None:
            text = self._open(text)
        if not text or self.name is None:
            return ""
        if self._rest:
            self._rest.append(text)
            return ""
        end = self._arguments.find(text)
        if end is not None:
            self._rest.append(text[end:])
            text = text[:end]
        self._given.append(text)
        return text

    def close(self) -> tuple[str, str] | None:
        """Read the whole block.

        Returns:
            Name and arguments of its call; None where it is no valid call, or another than the
            one that has begun.
        """
        parsed = parse_call(self.text)
        begun = self.name is None or parsed == (self.name, self.arguments + "}")
        return parsed if begun else None

    def left(self) -> str:
        """What a block that is no valid call has behind the arguments of the call it began."""
        return "".join(self._rest).strip(WHITESPACE + "}")

    def _open(self, text: str) -> str:
        """Look for the opening; return the text from the arguments on once it is there."""
        if self._opening is None:
            return ""
        self._opening += text
        read = self._opening
        found = _OPENING.match(read[:_LONGEST_OPENING])
        name = None if found is None else _name(found[1])
        if found is not None or len(read) >= _LONGEST_OPENING:
            self._opening = None
        if found is None or name is None:
            return ""
        self.name = name
        return read[found.end() - 1 :]


class ObjectEnd:
    """Finds where a JSON object ends whose text comes in pieces; each character is read once."""

    _OUTSIDE = re.compile(r'["{}\[\]]')
    _INSIDE = re.compile(r'["\\]')

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """Read the next piece; tell where in it the bracket is that closes the first one."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            mark = (self._INSIDE if self._in_string else self._OUTSIDE).search(text, at)
            if mark is None:
                return None
            at = mark.end()
            if self._closes(mark[0]):
                return at - 1
        return None

    def _closes(self, mark: str) -> bool:
        match mark:
            case '"':
                self._in_string = not self._in_string
            case "\\":
                self._escaped = True
            case "{" | "[":
                self._depth += 1
            case _:
                self._depth -= 1
                return self._depth == 0
        return False


def _name(text: str) -> str | None:
    try:
        name = json.loads(text)
    except ValueError:
        return None
    return name if name and name.isprintable() else None
