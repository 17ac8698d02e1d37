"""Encoding of long texts in pieces that are remembered: openings have most of theirs in common."""

from __future__ import annotations

import json
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from polar.types import IntArray

__all__ = ["PieceEncoder", "can_be_cut"]

_CAPACITY_BYTES = 32 * 2**20
_LEAST = 1024
"""Fewest characters of a piece but the last."""

_CUT = re.compile(r"[a-z](?= [bcfmpw])")
"""Ends a piece: the letter is the last of it. Which of the places that are safe are taken depends
on nothing but the text around them, so that texts are cut alike again after they differed."""

_BEFORE_SPACE = re.compile(r"[A-Za-z]\s")
_ENDS_IN_LETTER = re.compile(r"[A-Za-z]\Z")

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPLITTING = frozenset(
    {
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST,
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST,
        _CONTRACTION
        + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        + r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    }
)
"""Expressions (GPT-2, Qwen, Llama 3, Qwen 3.5, GPT-4o) that end a word between a letter and a
space: whatever they match a letter with takes no space after it, and none looks behind."""


class PieceEncoder:
    """Encodes texts, and remembers the ids of their pieces as long as there is room.

    Args:
        encode: Encodes texts one by one, each as if it were all there is.
        cut: Whether a text may be cut after a letter and before a space (see `can_be_cut`);
            otherwise whole texts are remembered.
        least: Fewest characters of a piece; a shorter text is encoded as it is.
        capacity_bytes: Memory of what is remembered.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[str]], list[list[int]]],
        *,
        cut: bool,
        least: int = _LEAST,
        capacity_bytes: int = _CAPACITY_BYTES,
    ) -> None:
        self._encode = encode
        self._cut = cut
        self._least = least
        self._capacity_bytes = capacity_bytes
        self._known: OrderedDict[str, IntArray] = OrderedDict()
        self._size_bytes = 0

    @property
    def cuts(self) -> bool:
        """Whether texts are cut, and not remembered whole."""
        return self._cut

    @property
    def size_bytes(self) -> int:
        """Memory of what is remembered now."""
        return self._size_bytes

    def __call__(self, text: str) -> list[int]:
        """Encode a text: the same ids as if it were encoded whole."""
        if len(text) < self._least:
            return self._encode([text])[0]
        pieces = list(self._pieces(text)) if self._cut else [text]
        known = self._ids_of(dict.fromkeys(pieces))
        for piece, ids in known.items():
            self._remember(piece, ids)
        whole: list[int] = np.concatenate([known[piece] for piece in pieces]).tolist()
        return whole

    def _ids_of(self, pieces: Iterable[str]) -> dict[str, IntArray]:
        """Look up what is remembered and encode the rest, all at once."""
        known = {piece: ids for piece in pieces if (ids := self._known.get(piece)) is not None}
        new = [piece for piece in pieces if piece not in known]
        encoded = self._encode(new) if new else []
        arrays = (np.array(ids, dtype=np.int32) for ids in encoded)
        return known | dict(zip(new, arrays, strict=True))

    def _pieces(self, text: str) -> Iterator[str]:
        start = 0
        while (found := _CUT.search(text, start + self._least - 1)) is not None:
            yield text[start : found.end()]
            start = found.end()
        yield text[start:]

    def _remember(self, piece: str, ids: IntArray) -> None:
        """Keep a piece as the latest, in place of those that were not used for longest."""
        if piece in self._known:
            self._known.move_to_end(piece)
            return
        self._known[piece] = ids
        self._size_bytes += _size_bytes(piece, ids)
        while self._size_bytes > self._capacity_bytes:
            self._size_bytes -= _size_bytes(*self._known.popitem(last=False))


def can_be_cut(backend: Any) -> bool:
    """Tell whether a tokenizer surely encodes both sides of a cut by themselves.

    The cut is after an ASCII letter and before a space that a letter follows. It must be in no
    added token, no such token may take the space to itself, nothing may be put before a text, and
    the words that are encoded each for itself must end there.

    Args:
        backend: A `tokenizers.Tokenizer`.
    """
    from tokenizers import models

    if not isinstance(backend.model, models.BPE) or backend.model.dropout:
        return False
    added = backend.get_added_tokens_decoder().values()
    if any(map(_disturbs, added)) or _state(backend.normalizer).get("type") not in (None, "NFC"):
        return False
    first = _state(backend.pre_tokenizer)
    steps = first["pretokenizers"] if first.get("type") == "Sequence" else [first]
    words = [step for step in steps if step.get("type") != "Digits"]
    return bool(words) and _splits(words[0]) and all(map(_goes_on, words[1:]))


def _disturbs(token: Any) -> bool:
    if token.rstrip and _ENDS_IN_LETTER.search(token.content):
        return True
    return _BEFORE_SPACE.search(token.content) is not None


def _splits(step: dict[str, Any]) -> bool:
    """Tell whether a step surely ends a word at every cut."""
    match step:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return True
        case {"type": "Split", "pattern": {"Regex": str(pattern)}}:
            how = (step["behavior"], step["invert"])
            return pattern in _SPLITTING and how in (("Isolated", False), ("Removed", True))
        case _:
            return False


def _goes_on(step: dict[str, Any]) -> bool:
    """Tell whether a step takes the words that were split before it one by one."""
    return _splits(step) or (step["type"] == "ByteLevel" and not step["add_prefix_space"])


def _state(part: Any) -> dict[str, Any]:
    state: dict[str, Any] = {} if part is None else json.loads(part.__getstate__())
    return state


def _size_bytes(piece: str, ids: IntArray) -> int:
    return sys.getsizeof(piece) + sys.getsizeof(ids)
