"""The demo's model, made for real: once, by one process, usable by transformers as it is."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polar.models import check_folder, resolve

PROGRAM = """
import sys
from pathlib import Path
from polar.models import resolve
print(resolve("smollm2-135m", cache=Path(sys.argv[1]), progress=print))
"""


def make(cache: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(cache)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.timeout(600)
def test_two_processes_make_it_once_and_nothing_is_left_over(tmp_path):
    with ThreadPoolExecutor() as processes:
        one, other = processes.map(make, [tmp_path, tmp_path])

    folder = tmp_path / "models" / "smollm2-135m"
    assert one[-1] == other[-1] == str(folder)
    assert sum(line.startswith("converting") for line in one + other) == 1
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, ".smollm2-135m.lock"}
    assert check_folder(folder, full=True) is None
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["eos_token_id"], config["pad_token_id"]) == (2, 2)

    told: list[str] = []
    assert resolve("smollm2-135m", cache=tmp_path, progress=told.append) == folder
    assert told == []
