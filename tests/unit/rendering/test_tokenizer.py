"""Past the layers of transformers the same comes out as through them."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders
from transformers import PreTrainedTokenizerFast

from polar.rendering.bytelevel import ByteDecoder
from polar.rendering.tiny import tiny_tokenizer
from polar.rendering.tokenizer import decode, decoder_of, encode, encoder_of

TOKENIZER = tiny_tokenizer()
FAST = decoder_of(TOKENIZER)
FAST_ENCODE = encoder_of(TOKENIZER)
SPECIAL = ("<|im_start|>", "<|im_end|>", " <|endoftext|> ")


def test_a_tokenizer_of_the_usual_kind_is_used_without_its_layers():
    assert not isinstance(FAST, partial)
    assert FAST_ENCODE.cuts


@given(st.lists(st.sampled_from(sorted(TOKENIZER.get_vocab().values()))))
def test_the_text_is_the_one_that_transformers_gives(token_ids):
    assert FAST(token_ids) == decode(TOKENIZER, token_ids)


@given(st.lists(st.one_of(st.text(), st.sampled_from(SPECIAL))).map("".join))
def test_the_ids_are_those_that_transformers_gives(text):
    assert FAST_ENCODE(text) == encode(TOKENIZER, text)


def test_a_tokenizer_that_was_saved_with_truncation_and_padding_does_neither():
    saved = tiny_tokenizer()
    saved.backend_tokenizer.enable_truncation(4)
    saved.backend_tokenizer.enable_padding(length=90)
    text = "a text of more than four tokens"
    assert encoder_of(saved)(text) == encode(TOKENIZER, text)


def test_a_tokenizer_that_takes_special_tokens_for_text_is_heeded():
    own = PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer().backend_tokenizer, split_special_tokens=True
    )
    assert encoder_of(own)(SPECIAL[0]) == encode(own, SPECIAL[0])


class Shouting(PreTrainedTokenizerFast):
    """Decodes in a way of its own."""

    def _decode(self, token_ids, **options):
        return super()._decode(token_ids, **options).upper()


def test_a_tokenizer_that_decodes_in_its_own_way_is_heeded():
    own = Shouting(tokenizer_object=TOKENIZER.backend_tokenizer)
    ids = own.encode("quiet", add_special_tokens=False)
    assert decoder_of(own)(ids) == "QUIET"


class Whispering(PreTrainedTokenizerFast):
    """Encodes in a way of its own."""

    def _encode_plus(self, text, **options):
        return super()._encode_plus(text.lower(), **options)


def test_a_tokenizer_that_encodes_in_its_own_way_is_heeded():
    own = Whispering(tokenizer_object=TOKENIZER.backend_tokenizer)
    assert encoder_of(own)("LOUD") == encode(TOKENIZER, "loud")


def with_added(*tokens):
    """A byte-level tokenizer with more tokens."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(list(tokens))
    return tokenizer


WIDE = with_added("<\uff5cwide\uff5c>", "naïve", "tab\there", "Ġ")


@given(st.lists(st.integers(0, len(WIDE) + 20)))
def test_bytes_are_decoded_by_a_table_to_what_the_tokenizer_says(token_ids):
    fast = decoder_of(WIDE)
    assert isinstance(fast, ByteDecoder)
    raw = WIDE.backend_tokenizer.decode(token_ids, skip_special_tokens=False)
    assert fast(token_ids) == raw


def test_a_tokenizer_whose_tokens_are_no_bytes_is_decoded_by_itself():
    own = tiny_tokenizer()
    own.backend_tokenizer.decoder = decoders.Metaspace()
    fast = decoder_of(own)
    assert not isinstance(fast, ByteDecoder)
    ids = own.encode("one two", add_special_tokens=False)
    assert fast(ids) == decode(own, ids)
