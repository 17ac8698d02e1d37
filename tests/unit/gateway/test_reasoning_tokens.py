"""How many sampled ids are reasoning."""

import numpy as np
import pytest

from polar.gateway.reasoning import reasoning_tokens
from polar.rendering.tiny import tiny_tokenizer
from polar.rendering.tokenizer import decode, encode
from polar.types import Message

TOKENIZER = tiny_tokenizer()


def count(text, message):
    ids = np.array(encode(TOKENIZER, text), np.int32)
    return reasoning_tokens(ids, message, lambda ids: decode(TOKENIZER, ids)), len(ids)


@pytest.mark.parametrize("thought", ["so", "a much longer thought, é😀, " * 40, "</thin"])
def test_the_ids_up_to_the_closing_tag_are_reasoning(thought):
    message = Message("assistant", "yes </think>", thought)
    head = f"<think>{thought}</think>"
    found, _ = count(f"{head} yes </think>", message)
    before = decode(TOKENIZER, encode(TOKENIZER, f"{head} yes </think>")[:found])
    assert before.startswith(head)
    assert "</think>" not in decode(
        TOKENIZER, encode(TOKENIZER, f"{head} yes </think>")[: found - 1]
    )


def test_reasoning_that_never_ended_is_all_there_is():
    found, whole = count("<think>on and on", Message("assistant", "", "on and on"))
    assert found == whole


def test_what_ends_in_an_unknown_way_is_not_counted():
    assert count("(so) yes", Message("assistant", "yes", "so"))[0] == 0
    assert count("yes", Message("assistant", "yes"))[0] == 0
