"""Stop strings, found in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopFilter"]


class StopFilter:
    """Passes text on until a stop string is complete, and never a part of one.

    Args:
        stops: Strings to stop before; none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False
        """Whether a stop string was found; all text from it on is swallowed."""
        self.found: str | None = None
        """The stop string that was found."""

    def feed(self, text: str) -> str:
        """Take more text and return what certainly comes before any stop string."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.found = min(found)
            self.stopped, self._held = True, ""
            return text[:at]
        certain = len(text) - self._longest_beginning(text)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """Return what was held back: no stop string came of it."""
        text, self._held = self._held, ""
        return text

    def _longest_beginning(self, text: str) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        longest = max(map(len, self._stops), default=0) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
