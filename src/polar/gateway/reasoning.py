"""How much of what was sampled is reasoning."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from polar.types import IntArray, Message

__all__ = ["reasoning_tokens"]

_END = "</think>"


def reasoning_tokens(
    sampled_ids: IntArray, message: Message, decode: Callable[[Sequence[int]], str]
) -> int:
    """Count the sampled ids up to the end of a reply's reasoning, its tag included.

    Args:
        sampled_ids: int32 [sampled]
        message: What they say.
        decode: Ids to text, special tokens included.

    Returns:
        0 where there is none, and where the model ends it in a way that is not known here.
    """
    if not message.reasoning:
        return 0
    ids = sampled_ids.tolist()
    if _END not in decode(ids):
        ended = message.content or message.tool_calls
        return 0 if ended else len(ids)
    return bisect_left(range(len(ids)), True, key=lambda count: _END in decode(ids[:count]))
