"""Loads the model that is trained and, by the embedded engine, sampled from."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from polar.errors import ModelMissing

__all__ = ["load_model"]


def load_model(folder: Path) -> PreTrainedModel:
    """Load a causal language model in float32, which the optimizer works in.

    Raises:
        ModelMissing: The folder holds no such model.
    """
    logging.disable_progress_bar()  # what goes on is shown by whoever called
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelMissing(
            f"the model cannot be loaded: {error}",
            where=str(folder),
            fix="Name a folder that AutoModelForCausalLM.from_pretrained can load.",
        ) from error
    loaded: PreTrainedModel = model.eval()
    return loaded
