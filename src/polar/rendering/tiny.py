"""A tokenizer made on the spot, for tests and dry runs where no model is at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from polar.rendering.generic import GenericRenderer
from polar.rendering.tokenizer import Tokenizer

__all__ = ["CHATML", "tiny_renderer", "tiny_tokenizer"]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The plain ChatML template; it ignores tools."""

_CORPUS = (
    "You can call these functions: system user assistant tool name arguments command",
    'The file is empty. The answer is 42. {"name": "bash", "arguments": {"command": "ls -la"}}',
    "Here is the listing of the folder, then the answer to the question of the user.",
)


def tiny_tokenizer(chat_template: str = CHATML, *, special_tokens: Sequence[str] = ()) -> Tokenizer:
    """Make a byte-level BPE tokenizer of some 300 tokens that encodes any text.

    Args:
        chat_template: Jinja template of a conversation.
        special_tokens: More special tokens than `<|im_start|>`, `<|im_end|>`, `<|endoftext|>`.
    """
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=320,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    names = dict.fromkeys(["<|im_start|>", "<|im_end|>", "<|endoftext|>", *special_tokens])
    backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.chat_template = chat_template
    return cast(Tokenizer, tokenizer)


def tiny_renderer(chat_template: str = CHATML) -> GenericRenderer:
    """Make a renderer over `tiny_tokenizer`."""
    return GenericRenderer(tiny_tokenizer(chat_template))
