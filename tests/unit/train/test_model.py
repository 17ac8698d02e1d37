"""Where a model goes, and what is said when it cannot go there."""

import pytest
import torch
from pydantic import ValidationError
from tiny_models import write_tiny_model

from polar.errors import ConfigError, ModelMissing
from polar.train.model import choose_device, load_model, quick_dtype
from polar.train.settings import TrainSettings


@pytest.mark.parametrize(
    ("wanted", "gpus", "cpu_only", "device"),
    [
        ("auto", 0, False, "cpu"),
        ("auto", 2, False, "cuda:0"),
        ("auto", 2, True, "cpu"),
        ("cpu", 2, False, "cpu"),
        ("cuda", 1, False, "cuda:0"),
        ("cuda:1", 2, False, "cuda:1"),
    ],
)
def test_a_gpu_is_taken_where_there_is_one_and_the_engine_leaves_it(wanted, gpus, cpu_only, device):
    assert choose_device(wanted, gpus=gpus, cpu_only=cpu_only) == torch.device(device)


def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"there is no cuda:2.*sees 2 GPUs"):
        choose_device("cuda:2", gpus=2)


def test_the_embedded_engine_refuses_a_gpu_rather_than_to_leave_it_unused():
    with pytest.raises(ConfigError, match="samples on the CPU, not on cuda"):
        choose_device("cuda", gpus=1, cpu_only=True)


@pytest.mark.parametrize("wanted", ["gpu", "cuda:", "cuda:x", "tpu"])
def test_a_device_of_another_name_is_refused_in_the_config(wanted):
    with pytest.raises(ValidationError, match="device"):
        TrainSettings(device=wanted)


@pytest.mark.parametrize("kept", [5, 5000])
def test_weights_that_are_cut_off_are_told_with_their_folder(tmp_path, kept):
    folder = write_tiny_model(tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(ModelMissing, match="cannot be loaded") as raised:
        load_model(folder)
    assert raised.value.where == str(folder)


@pytest.mark.parametrize(
    ("machine", "instructions", "dtype"),
    [
        ("x86_64", {"avx512_bf16"}, "bfloat16"),
        ("x86_64", {"amx_tile"}, "bfloat16"),
        ("x86_64", set(), "float32"),
        ("aarch64", {"mkldnn_bf16"}, "bfloat16"),
        ("aarch64", set(), "float32"),
    ],
)
def test_bfloat16_is_chosen_where_the_processor_multiplies_it(
    machine, instructions, dtype, monkeypatch
):
    monkeypatch.setattr("platform.machine", lambda: machine)
    for name in ("avx512_bf16", "amx_tile"):
        found = name in instructions
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda found=found: found)
    monkeypatch.setattr(
        torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: "mkldnn_bf16" in instructions
    )
    assert quick_dtype(torch.device("cpu")) == dtype


def test_a_gpu_trains_in_bfloat16():
    assert quick_dtype(torch.device("cuda", 0)) == "bfloat16"
