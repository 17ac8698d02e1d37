"""What Ctrl-C and other requests to end do to a command: at once while it starts, later in order.

Imports next to nothing: it is there before all else.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

__all__ = ["INTERRUPTED", "EndRequests", "end_at_once"]

INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a command that Ctrl-C has ended."""

_Handler = Callable[[int, FrameType | None], None]


def end_at_once() -> None:
    """Have a request to end exit this process, for where there is nothing to take down.

    Python's own handler raises an exception, which would come in the middle of an import or of
    Python's end and be shown with a traceback, or be swallowed.
    """
    _take(interrupt=_exit, others=_exit)


class EndRequests:
    """Has every request to end do what Ctrl-C does, and remembers which one came."""

    def __init__(self) -> None:
        self._last = signal.SIGINT

    def listen(self) -> None:
        """Raise `KeyboardInterrupt` from now on: sandboxes are killed, the journal is closed."""
        _take(interrupt=signal.default_int_handler, others=self._interrupt)

    def exit_code(self, code: int) -> int:
        """Give the exit code of a command by the signal that ended it, 128 + its number.

        Args:
            code: The command's own; another than an interrupted one's stays as it is.
        """
        return 128 + self._last if code == INTERRUPTED else code

    def _interrupt(self, number: int, _: FrameType | None) -> None:
        self._last = signal.Signals(number)
        signal.raise_signal(signal.SIGINT)


def _take(*, interrupt: _Handler, others: _Handler) -> None:
    # Shells start background jobs with Ctrl-C ignored, which is no wish of their user.
    signal.signal(signal.SIGINT, interrupt)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, others)


def _exit(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)
