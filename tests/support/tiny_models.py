"""Random models of two layers, in every shape that the embedded engine knows."""

from pathlib import Path

import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from polar.rendering.tiny import tiny_tokenizer

VOCABULARY = 128
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    # Large weights, so that tokens differ in likelihood.
    "initializer_range": 0.4,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**GROUPED)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**GROUPED, head_dim=32)),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**GROUPED)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES)),
}


def tiny_model(name: str = "llama", seed: int = 0) -> PreTrainedModel:
    """Make a model whose weights follow from the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MODELS[name]().eval()
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases and norms start out all alike
                parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def write_tiny_model(folder: Path) -> Path:
    """Write a random model that talks ChatML, with its tokenizer."""
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder)
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(shape).save_pretrained(folder)
    return folder


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Make a prompt of that many tokens."""
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(VOCABULARY, (length,), generator=generator).tolist()
    return found


@torch.no_grad()
def reference_logprobs(
    model: PreTrainedModel, prompt: list[int], reply: list[int], temperature: float = 1.0
) -> torch.Tensor:
    """Compute the logprobs of a reply by the model's own forward pass: [reply]."""
    logits = model(torch.tensor([prompt + reply])).logits[0].float() / temperature
    rows = range(len(prompt) - 1, len(prompt) + len(reply) - 1)
    return logits.log_softmax(dim=-1)[list(rows), reply]
