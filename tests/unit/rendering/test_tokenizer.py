"""Decoding without the layers of transformers gives the text that they give."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from polar.rendering.tiny import tiny_tokenizer
from polar.rendering.tokenizer import decode, decoder_of

TOKENIZER = tiny_tokenizer()
FAST = decoder_of(TOKENIZER)


def test_a_tokenizer_of_the_usual_kind_is_decoded_without_its_layers():
    assert not isinstance(FAST, partial)


@given(st.lists(st.sampled_from(sorted(TOKENIZER.get_vocab().values()))))
def test_the_text_is_the_one_that_transformers_gives(token_ids):
    assert FAST(token_ids) == decode(TOKENIZER, token_ids)


class Shouting(PreTrainedTokenizerFast):
    """Decodes in a way of its own."""

    def _decode(self, token_ids, **options):
        return super()._decode(token_ids, **options).upper()


def test_a_tokenizer_that_decodes_in_its_own_way_is_heeded():
    own = Shouting(tokenizer_object=TOKENIZER.backend_tokenizer)
    ids = own.encode("quiet", add_special_tokens=False)
    assert decoder_of(own)(ids) == "QUIET"
