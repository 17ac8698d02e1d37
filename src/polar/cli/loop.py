"""The event loop that commands run in, and how often the garbage collector looks about."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["keep_loaded", "run_async"]

T = TypeVar("T")


_COLLECTOR_THRESHOLDS = (20_000, 10, 10)
"""Python's own are (700, 10, 10): one reply of an engine makes as many objects, which reference
counts free at once, and the collector was an eighth of what the gateway takes for a call."""


def keep_loaded() -> None:
    """Have the garbage collector pass over what is loaded by now, and look about less often.

    Nothing of it is garbage, but every full collection would walk through all of it: modules,
    tokenizer and model are some hundred thousand objects, and the gateway stands still meanwhile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop where there is one.

    A call passes the loop some ten times on its way through the gateway; uvloop makes what the
    gateway adds to it about a third shorter.
    """
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    ran: T = uvloop.run(main)
    return ran
