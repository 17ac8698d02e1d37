"""A text in pieces has the ids of the text as a whole, and what is remembered is bounded."""

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.trainers import BpeTrainer

from polar.rendering.pieces import _SPLITTING, PieceEncoder, can_be_cut

CORPUS = (
    "you can call back the command of a file, it's what we'd been told because of more",
    'the answer is 42. {"name": "bash", "arguments": {"command": "ls -la | wc"}} e be a be',
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
PLAIN = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
DIGITS = pre_tokenizers.Digits(individual_digits=True)


def backend_of(*steps, normalizer=None, added=(), model=None) -> Backend:
    backend = Backend(models.BPE() if model is None else model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(steps)) if steps else None
    if normalizer is not None:
        backend.normalizer = normalizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS * 3, trainer)
    special = [AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")]
    backend.add_tokens([*special, *added])
    return backend


def split(pattern: str, behavior: str = "isolated", *, invert: bool = False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def known(word: str) -> str:
    return next(pattern for pattern in sorted(_SPLITTING) if word in pattern)


CUT = {
    "bytes": backend_of(BYTES),
    "digits": backend_of(DIGITS, BYTES),
    "composed": backend_of(BYTES, normalizer=normalizers.NFC()),
    "swallowing": backend_of(
        BYTES,
        added=(
            AddedToken("<mask>", lstrip=True, rstrip=True, single_word=True),
            AddedToken("back", lstrip=True, single_word=True),
            AddedToken("   "),
        ),
    ),
    **{
        f"split-{number}": backend_of(split(pattern), PLAIN)
        for number, pattern in enumerate(sorted(_SPLITTING))
    },
    "removed": backend_of(split(known("{1,3}"), "removed", invert=True), PLAIN),
}
WHOLE = {
    "no pre-tokenizer": backend_of(),
    "unknown expression": backend_of(split(r"\w+\s*"), PLAIN),
    "known expression that is removed": backend_of(split(known("'s|'t"), "removed"), PLAIN),
    "bytes before the words are split": backend_of(PLAIN, split(known("'s|'t"))),
    "space before each text": backend_of(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "metaspace": backend_of(pre_tokenizers.Metaspace(prepend_scheme="first")),
    "prepended": backend_of(BYTES, normalizer=normalizers.Prepend("_")),
    "token with a space in it": backend_of(BYTES, added=(AddedToken("a be"),)),
    "word that takes the space after it": backend_of(BYTES, added=(AddedToken("e", rstrip=True),)),
    "dropout": backend_of(BYTES, model=models.BPE(dropout=0.1)),
}
PIECES = st.sampled_from(
    [
        *("a be", "the back of", "it's what", "he'd been", "more  \n\n  command", "e\tb", "\r\n"),
        *("café be", "e\u0301 be", "n \u0301 b", "a 42 be", "'s c", "'S c", "x\u00a0b", "_a b"),
        *("<|im_start|>", "<|im_end|>", " <mask> ", "back", "   ", "语言 b", "😀 b", "ǅa b"),
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=5), st.text("abe '1\n", max_size=9)))


def encoder_over(backend: Backend, **options) -> PieceEncoder:
    def encode(texts):
        return [found.ids for found in backend.encode_batch_fast(texts, add_special_tokens=False)]

    return PieceEncoder(encode, cut=can_be_cut(backend), **options)


@pytest.mark.parametrize("kind", CUT)
@given(texts=st.lists(TEXTS.map("".join), min_size=1, max_size=3))
def test_the_ids_of_a_text_in_pieces_are_those_of_the_whole(kind, texts):
    encoder = encoder_over(CUT[kind], least=2, capacity_bytes=2000)
    assert encoder.cuts
    for text in texts:
        assert encoder(text) == CUT[kind].encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", WHOLE)
def test_a_tokenizer_that_might_join_what_is_cut_is_given_whole_texts(kind):
    encoder = encoder_over(WHOLE[kind], least=2)
    assert not encoder.cuts
    if kind != "dropout":
        for _ in range(2):
            whole = WHOLE[kind].encode("a be a be", add_special_tokens=False).ids
            assert encoder("a be a be") == whole


def counting() -> tuple[PieceEncoder, list[str]]:
    asked: list[str] = []

    def encode(texts):
        asked.extend(texts)
        return [[ord(character) for character in text] for text in texts]

    return PieceEncoder(encode, cut=True, capacity_bytes=200_000), asked


def words(seed: int, count: int) -> str:
    """Words without order, so that no piece is there twice."""
    chosen = random.Random(seed)
    return " ".join("".join(chosen.choices("abcdefmpw", k=5)) for _ in range(count))


def test_only_what_differs_from_earlier_texts_is_encoded():
    encoder, asked = counting()
    start, end = words(1, 1000), words(2, 1000)
    for middle in ("one", "another one"):
        asked.clear()
        encoder(f"{start} {middle} {end}")
    assert sum(map(len, asked)) < 4000


def test_a_short_text_is_neither_cut_nor_remembered():
    encoder, asked = counting()
    assert encoder("a be") == [97, 32, 98, 101]
    assert (asked, encoder.size_bytes) == (["a be"], 0)


def test_what_is_remembered_stays_within_its_bytes():
    encoder, _ = counting()
    sizes = []
    for number in range(60):
        encoder(words(number, 1000))
        sizes.append(encoder.size_bytes)
    assert 100_000 < max(sizes) <= 200_000


def test_a_text_larger_than_the_memory_is_encoded_all_the_same():
    encoder = PieceEncoder(
        lambda texts: [[len(text)] for text in texts], cut=False, capacity_bytes=1000
    )
    assert encoder("x" * 5000) == [5000]
    assert encoder.size_bytes == 0


def test_what_was_used_last_is_kept():
    encoder, asked = counting()
    often = words(0, 1000)
    for number in range(1, 60):
        encoder(often)
        encoder(words(number, 1000))
    asked.clear()
    encoder(often)
    assert asked == []


def test_the_memory_counted_is_that_of_texts_and_ids():
    encoder = PieceEncoder(lambda texts: [[1] * 500 for _ in texts], cut=False)
    text = "x" * 2000
    encoder(text)
    assert encoder.size_bytes >= sys.getsizeof(text) + 4 * 500
