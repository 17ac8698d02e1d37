"""Ids of output items: they tell which reply an item came from when it is sent back."""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["ItemKind", "given_as_it_was", "item_id", "response_of"]

ItemKind = Literal["rs", "msg", "fc", "ctc", "raw", "cmp"]
"""Reasoning, message, call of a function, of a freeform tool, of a freeform tool whose arguments
were not of its form, and a summary."""

_OWN = re.compile(r"(?:rs|msg|fc|ctc|raw)_(?P<response>.+)_\d+")


def item_id(kind: ItemKind, response_id: str, index: int) -> str:
    """Make the id of a reply's item; `index` is its place in the output."""
    return f"{kind}_{response_id}_{index}"


def response_of(own_id: str | None) -> str | None:
    """Tell which response an item belongs to; None where its id was made elsewhere."""
    found = _OWN.fullmatch(own_id or "")
    return found["response"] if found else None


def given_as_it_was(own_id: str | None) -> bool:
    """Tell whether a freeform call's input is the model's arguments as they were."""
    return response_of(own_id) is not None and (own_id or "").startswith("raw_")
