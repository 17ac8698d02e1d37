"""The check for machines with a GPU goes through in small on a CPU, if that is asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/gpu_check.sh"


def gpu_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHON": sys.executable,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    command = ["sh", str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.timeout(300)
def test_a_dry_run_tests_gradients_and_times_a_tree():
    done = gpu_check("--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FlexAttention has no backward pass but on a GPU" in done.stdout
    assert '"gradient_relative_error"' in done.stdout
    assert " passed" in done.stdout
    assert "all passed" in done.stdout


def test_without_a_gpu_it_says_so():
    done = gpu_check()
    assert done.returncode == 2
    assert "no GPU" in done.stdout
