"""Read a folder of weights into a model that is already there."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from polar.errors import ModelMissing

__all__ = ["load_folder"]


def load_folder(model: PreTrainedModel, path: Path) -> None:
    """Copy the safetensors files of a folder into the model's parameters, in place.

    Raises:
        ModelMissing: The folder has none, or they are not of this model.
    """
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelMissing("the folder holds no safetensors file", where=str(path))
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    tied = set(model.all_tied_weights_keys)
    try:
        with torch.no_grad():
            found = model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise ModelMissing(f"the weights do not fit the model: {error}", where=str(path)) from error
    absent = [name for name in found.missing_keys if name not in tied]
    if absent or found.unexpected_keys:
        odd = (absent + found.unexpected_keys)[0]
        raise ModelMissing(f"the weights are another model's: see '{odd}'", where=str(path))
