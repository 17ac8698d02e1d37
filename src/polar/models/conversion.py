"""Converts a GGUF file to a folder in Hugging Face format, in float32."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from polar.errors import SetupError

__all__ = ["convert_gguf"]

_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_ONLY_GGUF = ("quantization_config", "_name_or_path", "_model_name_or_path", "dtype")


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write config, weights, tokenizer and chat template.

    The weights are those that the file's quantization stands for; nothing is quantized again.

    Args:
        gguf: The file.
        folder: Where to write; must exist.

    Raises:
        SetupError: A package that conversion needs is not installed.
    """
    try:
        import gguf as _  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    except ImportError as error:
        raise SetupError(
            f"converting a model needs the package {error.name}",
            fix="Install Polar with what training needs: pip install 'polar-rl[train]'.",
        ) from error
    source = {"gguf_file": gguf.name, "local_files_only": True}
    # The progress bars of the conversion would be drawn through our own.
    with contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **source)
        loaded = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), dtype=torch.float32, **source
        )
        special = {name: getattr(tokenizer, name) for name in _SPECIAL_TOKENS}
        # What was loaded from GGUF counts as quantized and refuses to be saved.
        config = type(loaded.config).from_dict(_plain(loaded.config.to_dict()) | special)
        model = type(loaded)(config)
        model.load_state_dict(loaded.state_dict())
        model.generation_config = GenerationConfig(**special)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _plain(config: dict[str, object]) -> dict[str, object]:
    """Drop what is only true of the GGUF file."""
    return {key: value for key, value in config.items() if key not in _ONLY_GGUF}
