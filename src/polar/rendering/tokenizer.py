"""What rendering needs of a Hugging Face tokenizer, typed; loaded only on demand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, is_
from pathlib import Path
from typing import Any, Protocol, cast

from polar.errors import ModelMissing
from polar.rendering.bytelevel import ByteDecoder, is_byte_level
from polar.rendering.pieces import PieceEncoder, can_be_cut

__all__ = [
    "Tokenizer",
    "decode",
    "decoder_of",
    "encode",
    "encoder_of",
    "fingerprint",
    "load_tokenizer",
]


class Tokenizer(Protocol):
    """The part of `transformers.PreTrainedTokenizerBase` that is used here."""

    chat_template: str | None
    eos_token_id: int | None
    added_tokens_decoder: Mapping[int, Any]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""
        ...

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> str:
        """Ids to text."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """All tokens, added ones included."""
        ...

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], **options: Any
    ) -> str | list[int]:
        """Render the chat template."""
        ...


def load_tokenizer(model: str) -> Tokenizer:
    """Load the tokenizer of a local folder or a hub id.

    Raises:
        ModelMissing: There is none.
    """
    if model.startswith(("/", ".", "~")) and not Path(model).expanduser().is_dir():
        raise ModelMissing("the model folder does not exist", where=model, fix="Check the path.")
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(Path(model).expanduser()))
    except (OSError, ValueError) as error:
        raise ModelMissing(
            "no tokenizer could be loaded",
            where=model,
            fix="Give a folder with tokenizer.json or the id of a model on the hub.",
        ) from error
    return cast(Tokenizer, loaded)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode rendered text: special tokens are read as such, none is added."""
    return tokenizer.encode(text, add_special_tokens=False)


def decode(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Decode every id, special ones included, without tidying spaces."""
    return tokenizer.decode(
        list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


def encoder_of(tokenizer: Tokenizer) -> PieceEncoder:
    """Choose how to encode: past the layers of transformers where they add nothing."""
    if not _is_plain(tokenizer, "encode", "_encode_plus") or _splits_special_tokens(tokenizer):
        return PieceEncoder(lambda texts: [encode(tokenizer, text) for text in texts], cut=False)
    raw = cast(Any, tokenizer).backend_tokenizer
    raw.no_truncation()
    raw.no_padding()
    return PieceEncoder(partial(_encode_past, raw), cut=can_be_cut(raw))


def decoder_of(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    """Choose how to decode: past the layers of transformers where they add nothing.

    They cost three times the decoding itself, which is done for every sampled token.
    """
    if not _is_plain(tokenizer, "decode", "_decode"):
        return partial(decode, tokenizer)
    raw = cast(Any, tokenizer).backend_tokenizer
    if is_byte_level(raw):
        return ByteDecoder(raw)
    return lambda token_ids: cast(str, raw.decode(list(token_ids), skip_special_tokens=False))


def fingerprint(tokenizer: Tokenizer) -> str:
    """Hash vocabulary and chat template: equal prints render and decode alike."""
    vocabulary = sorted(tokenizer.get_vocab().items())
    text = json.dumps([vocabulary, tokenizer.chat_template], ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _encode_past(raw: Any, texts: Sequence[str]) -> list[list[int]]:
    """Encode past transformers, and without offsets, which nobody asks for."""
    return [found.ids for found in raw.encode_batch_fast(texts, add_special_tokens=False)]


def _is_plain(tokenizer: Tokenizer, *methods: str) -> bool:
    """Tell whether methods of a fast tokenizer are those of transformers itself."""
    from transformers import PreTrainedTokenizerFast

    get = attrgetter(*methods)
    return isinstance(tokenizer, PreTrainedTokenizerFast) and all(
        map(is_, get(type(tokenizer)), get(PreTrainedTokenizerFast))
    )


def _splits_special_tokens(tokenizer: Tokenizer) -> bool:
    return bool(cast(Any, tokenizer).split_special_tokens)
