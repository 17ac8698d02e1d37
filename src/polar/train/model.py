"""Loads the model that is trained and, by the embedded engine, sampled from."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from polar.errors import ConfigError, ModelMissing

__all__ = ["choose_device", "converted", "load_model", "quick_dtype"]


def choose_device(wanted: str, *, gpus: int | None = None, cpu_only: bool = False) -> torch.device:
    """Say where a model goes.

    Args:
        wanted: `auto`, `cpu`, `cuda`, or `cuda:1` for the second GPU.
        gpus: GPUs that there are; absent: those that PyTorch sees.
        cpu_only: The embedded engine samples from the same model, which it does on the CPU.

    Raises:
        ConfigError: There is no such GPU, or the engine cannot use it.
    """
    gpus = torch.cuda.device_count() if gpus is None else gpus
    if wanted == "auto":
        return torch.device("cuda:0" if gpus and not cpu_only else "cpu")
    device = torch.device(wanted)
    if device.type == "cpu":
        return device
    if cpu_only:
        raise ConfigError(
            f"the embedded engine samples on the CPU, not on {wanted}",
            where="train.device",
            fix="Set engine.name to vllm or sglang to train on a GPU, or train.device to cpu.",
        )
    if (device.index or 0) >= gpus:
        raise ConfigError(
            f"there is no {wanted}: PyTorch {torch.__version__} sees {gpus} GPUs",
            where="train.device",
            fix="Set train.device to auto, or install a PyTorch build for your GPU's driver.",
        )
    return torch.device("cuda", device.index or 0)


def quick_dtype(device: torch.device) -> Literal["float32", "bfloat16"]:
    """Say in which precision products are quickest that training gets along with.

    Processors without instructions for bfloat16 compute with it through float32: a product of
    512 rows took eight times as long on one that has only AVX2.
    """
    return "bfloat16" if device.type != "cpu" or _multiplies_bfloat16() else "float32"


def _multiplies_bfloat16() -> bool:
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return supported


def load_model(folder: Path, device: torch.device | None = None) -> PreTrainedModel:
    """Load a causal language model in float32, which the optimizer works in.

    Args:
        folder: Where it is.
        device: Where it goes; absent: the CPU.

    Raises:
        ModelMissing: The folder holds no such model.
        ConfigError: It does not fit the device.
    """
    logging.disable_progress_bar()  # what goes on is shown by whoever called
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelMissing(
            f"the model cannot be loaded: {error}",
            where=str(folder),
            fix="Name a folder that AutoModelForCausalLM.from_pretrained can load.",
        ) from error
    loaded: PreTrainedModel = model.eval()
    return loaded if device is None else _moved(loaded, device)


def converted(
    model: PreTrainedModel, *, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """Move a model and change its dtype in place, to what loading it in that dtype would give.

    Buffers that no checkpoint holds keep their precision: rotary frequencies in bfloat16 are
    off by up to 0.2%, which is a turn at position 4,000.
    """
    computed = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
        if name in module._non_persistent_buffers_set
    ]
    moved: PreTrainedModel = model.to(device=device, dtype=dtype)
    for module, name, buffer in computed:
        setattr(module, name, buffer.to(device))
    return moved


def _moved(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    try:
        moved: PreTrainedModel = model.to(device)
    except torch.OutOfMemoryError as error:
        size = sum(each.numel() for each in model.parameters()) * 4 / 2**30
        raise ConfigError(
            f"the model, {size:.1f} GiB in float32, does not fit {device}",
            where="train.device",
            fix="Free the GPU of other programs, name another one, or take a smaller model.",
        ) from error
    return moved
