"""Metrics reach TensorBoard, Trackio and W&B as the numbers of the run folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from polar.errors import SetupError
from polar.train.writers import CountedRows, MetricsSettings, numbers, opened

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


class Listening:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.had: list[tuple[str, int]] = []

    def add(self, row) -> None:
        self.had.append((row["phase"], row["step"]))

    def close(self) -> None:
        pass


def train_rows(*steps):
    return [{"phase": "train", "step": step} for step in steps]


def until(last):
    return lambda phase, step: phase == "train" and step <= last


def test_a_row_is_held_back_until_the_saved_state_counts_it(tmp_path):
    writer = Listening()
    rows = CountedRows([writer], tmp_path / "sent")
    rows.add(train_rows(1, 2, 3))
    assert writer.had == []
    rows.send(until(2))
    assert writer.had == [("train", 1), ("train", 2)]
    rows.send(until(3))
    assert writer.had == [("train", 1), ("train", 2), ("train", 3)]


def test_rows_that_a_killed_run_made_after_its_last_save_reach_a_writer_once(tmp_path):
    writer = Listening()
    killed = CountedRows([writer], tmp_path / "sent")
    killed.add(train_rows(1, 2, 3, 4))
    killed.send(until(2))
    resumed = CountedRows([writer], tmp_path / "sent")
    resumed.add(train_rows(1, 2))
    resumed.send()
    resumed.add([*train_rows(3, 4, 5), {"phase": "heldout_after", "step": 5}])
    resumed.send(until(5))
    assert writer.had == [("train", step) for step in (1, 2, 3, 4, 5)]
    resumed.send()
    assert writer.had[-1] == ("heldout_after", 5)


def test_an_evaluation_that_a_finished_run_makes_again_is_not_sent_again(tmp_path):
    writer, last = Listening(), {"phase": "heldout_after", "step": 5}
    for _ in range(2):
        rows = CountedRows([writer], tmp_path / "sent")
        rows.add([last])
        rows.send()
    assert writer.had == [("heldout_after", 5)]


def test_rows_that_were_saved_but_not_sent_are_sent_by_the_resumed_run(tmp_path):
    CountedRows([Listening()], tmp_path / "sent").add(train_rows(1, 2))
    writer = Listening()
    resumed = CountedRows([writer], tmp_path / "sent")
    resumed.add(train_rows(1, 2))
    resumed.send()
    assert writer.had == [("train", 1), ("train", 2)]


def test_what_a_kill_left_of_the_record_does_not_spoil_it(tmp_path):
    writer, sent = Listening(), tmp_path / "sent"
    sent.write_text('{"phase": "train", "step": 1}\n{"phase": "tr')
    for _ in range(2):
        rows = CountedRows([writer], sent)
        rows.add(train_rows(1, 2))
        rows.send()
    assert writer.had == [("train", 2)]


def test_without_a_writer_nothing_is_kept_of_what_was_sent(tmp_path):
    rows = CountedRows([], tmp_path / "sent")
    rows.add(train_rows(1))
    rows.send()
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
