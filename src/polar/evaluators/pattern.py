"""Searches text that an agent wrote with a regular expression that may take for ever on it."""

from __future__ import annotations

import json
import subprocess
import sys

__all__ = ["PatternTimeout", "search"]

_CHILD = """
import json, re, sys
pattern, text = json.load(sys.stdin)
sys.exit(0 if re.search(pattern, text) else 1)
"""


class PatternTimeout(Exception):
    """The search was given up."""


def search(pattern: str, text: str, *, timeout_s: float) -> bool:
    """Tell whether the pattern is found anywhere in the text.

    The search runs in a process of its own, since one that backtracks without end cannot be
    stopped in a thread.

    Raises:
        PatternTimeout: It took longer than `timeout_s`.
    """
    argv = (sys.executable, "-I", "-S", "-c", _CHILD)
    request = json.dumps([pattern, text])
    try:
        done = subprocess.run(
            argv, input=request, text=True, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PatternTimeout(f"the search took longer than {timeout_s} s") from error
    return done.returncode == 0
