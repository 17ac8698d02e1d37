"""Decoding of byte-level tokens by a table: they stand for bytes, whatever stands around them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

__all__ = ["ByteDecoder", "is_byte_level"]

_PROBED_IDS = 512


class ByteDecoder:
    """Decodes ids, special ones included, to what the tokenizer would decode them to.

    The tokenizer puts the names of all tokens together and reads them anew; this looks up the
    bytes of each, and a token is new but once.

    Args:
        backend: A `tokenizers.Tokenizer` with the byte-level decoder.
    """

    def __init__(self, backend: Any) -> None:
        self._bytes = _TokenBytes(backend)

    def __call__(self, token_ids: Sequence[int]) -> str:
        """Decode; broken characters become U+FFFD."""
        found = self._bytes
        return b"".join([found[token_id] for token_id in token_ids]).decode("utf-8", "replace")


class _TokenBytes(dict[int, bytes]):
    """The bytes of each id that was asked for."""

    def __init__(self, backend: Any) -> None:
        super().__init__()
        self._name_of = backend.id_to_token

    def __missing__(self, token_id: int) -> bytes:
        name = self._name_of(int(token_id))
        found = b"" if name is None else _bytes_of(name)
        self[int(token_id)] = found
        return found


def is_byte_level(backend: Any) -> bool:
    """Tell whether a tokenizer surely decodes its tokens byte by byte: by its word and by trying.

    Args:
        backend: A `tokenizers.Tokenizer`.
    """
    decoder = backend.decoder
    if decoder is None or json.loads(decoder.__getstate__()).get("type") != "ByteLevel":
        return False
    size = backend.get_vocab_size(with_added_tokens=True)
    ids = [*range(0, size, max(1, size // _PROBED_IDS)), *backend.get_added_tokens_decoder()]
    there: str = backend.decode(ids, skip_special_tokens=False)
    return ByteDecoder(backend)(ids) == there


def _alphabet() -> dict[str, int]:
    """Say which byte each character of a token's name stands for.

    Bytes that print stand for themselves, the others for characters from U+0100 on.

    Source: `bytes_to_unicode` of GPT-2; Radford et al., "Language Models are Unsupervised
    Multitask Learners", 2019.
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in printing]
    shifted = {chr(0x100 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in printing} | shifted


_BYTE_OF = _alphabet()


def _bytes_of(name: str) -> bytes:
    """Read a token's name; one with a character that stands for no byte is meant as it is."""
    try:
        return bytes([_BYTE_OF[character] for character in name])
    except KeyError:
        return name.encode()
