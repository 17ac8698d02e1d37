"""Metrics reach TensorBoard, Trackio and W&B as the numbers of the run folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from polar.errors import SetupError
from polar.train.writers import MetricsSettings, numbers, opened

ROWS = [
    {"phase": "heldout_before", "step": 0, "pass_at_1": 0.25},
    {"phase": "train", "step": 1, "reward_mean": 0.5, "dropped": {"too_long": 3}, "entropy": None},
    {"phase": "train", "step": 2, "reward_mean": 0.75, "dropped": {}, "entropy": 1.5},
]


def test_numbers_are_named_by_phase_and_nothing_else_is_passed_on():
    row = ROWS[1] | {"losses": (2.0, 1.0), "model": "m", "resumed": True, "kl": None}
    assert numbers(row) == {
        "train/reward_mean": 0.5,
        "train/dropped/too_long": 3.0,
        "train/losses/0": 2.0,
        "train/losses/1": 1.0,
    }


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "tensorboard"), ("trackio", "trackio"), ("wandb", "wandb")],
)
def test_a_writer_whose_package_is_not_installed_says_what_to_install(
    tmp_path, monkeypatch, name, package
):
    for module in [m for m in sys.modules if m.split(".")[0] == package or name in m]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with (
        pytest.raises(SetupError, match=f"metrics.writers names {name}") as raised,
        opened(MetricsSettings(writers=(name,)), tmp_path),
    ):
        pass
    assert f"polar-rl[{name}]" in raised.value.fix


def test_without_a_writer_nothing_is_opened(tmp_path):
    with opened(MetricsSettings(), tmp_path) as writers:
        assert writers == []
    assert list(tmp_path.iterdir()) == []


def write(name, folder):
    folder.mkdir()
    with opened(MetricsSettings(writers=(name,), project="trial"), folder) as (writer,):
        for row in ROWS:
            writer.add(row)


@pytest.mark.writers
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_the_rows_back(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    found = [(e.step, e.value) for e in events.Scalars("train/reward_mean")]
    assert found == [(1, 0.5), (2, 0.75)]
    assert [e.value for e in events.Scalars("heldout_before/pass_at_1")] == [0.25]
    assert [e.step for e in events.Scalars("train/entropy")] == [2]


@pytest.mark.writers
@pytest.mark.filterwarnings("ignore")
def test_trackio_reads_the_rows_back(tmp_path):
    folder = tmp_path / "run"
    environ = os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio")}  # read when it is imported
    subprocess.run(
        [sys.executable, "-c", TRACKIO, json.dumps(ROWS), str(folder)], env=environ, check=True
    )
    assert json.loads((folder / "read.json").read_text()) == {"0": None, "1": 0.5, "2": 0.75}


TRACKIO = """\
import json, sys
from pathlib import Path
from polar.train.writers import MetricsSettings, opened
rows, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
folder.mkdir()
with opened(MetricsSettings(writers=("trackio",), project="trial"), folder) as (writer,):
    for row in rows:
        writer.add(row)
from trackio.sqlite_storage import SQLiteStorage
logs = SQLiteStorage.get_logs("trial", "run")
read = {each["step"]: each.get("train/reward_mean") for each in logs}
(folder / "read.json").write_text(json.dumps(read))
"""


@pytest.mark.writers
@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_the_rows_offline(tmp_path, capfd):
    write("wandb", tmp_path / "run")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    assert file.stat().st_size > 0
    told = capfd.readouterr().err  # the file itself is compressed, and read by its server alone
    summary = dict(re.findall(r"wandb: +(\S+/\S+) ([\d.]+)$", told, re.MULTILINE))
    assert summary == {
        "heldout_before/pass_at_1": "0.25",
        "train/dropped/too_long": "3",
        "train/entropy": "1.5",
        "train/reward_mean": "0.75",
    }
