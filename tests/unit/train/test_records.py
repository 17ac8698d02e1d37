"""What a run leaves behind: metrics, curves, JSON."""

import json

import pytest

from polar.errors import JournalError
from polar.train.records import (
    MetricsLog,
    draw_curve,
    heldout_curve,
    smoothed,
    terminal_curve,
    write_json,
)


def row(step: int, phase: str = "train", rate: float = 0.5) -> dict:
    return {"phase": phase, "step": step, "pass_rate": rate}


def test_rows_are_read_back_in_order(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.add(row(1))
    log.add(row(2))
    assert MetricsLog(tmp_path / "metrics.jsonl").rows == [row(1), row(2)]


@pytest.mark.parametrize("damage", [b"garbage", b"\xff\xfe", b"[1]", b'{"phase": 1}'])
def test_a_damaged_line_before_the_last_is_refused_and_nothing_is_lost(tmp_path, damage):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(damage + b"\n" + json.dumps(row(1)).encode() + b"\n")
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"metrics\.jsonl:1"):
        MetricsLog(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("torn", ['{"phase": "tra', "{", "\x00\x00", "[1]", "\udcff"])
def test_the_torn_last_line_of_a_killed_process_is_cut_off(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes((json.dumps(row(1)) + "\n" + torn).encode(errors="surrogateescape"))
    log = MetricsLog(path)
    assert log.rows == [row(1)]
    log.add(row(2))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [row(1), row(2)]


def test_rows_that_are_made_again_are_forgotten(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for each in (row(0, "heldout_before"), row(1), row(2), row(3)):
        log.add(each)
    log.retain(lambda phase, step: phase != "train" or step <= 1)
    assert log.rows == [row(0, "heldout_before"), row(1)]
    assert MetricsLog(tmp_path / "metrics.jsonl").rows == log.rows


def test_what_cannot_be_written_is_one_clear_error(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(JournalError, match="cannot be written"):
        log.add(row(1))
    assert log.rows == []


def test_json_is_written_whole(tmp_path):
    write_json(tmp_path / "summary.json", {"a": 1})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def evaluation(step: int, phase: str) -> dict:
    return {**row(step, phase), "pass_at_1": 0.5, "low": 0.25, "high": 1.0}


def test_a_curve_is_a_png_with_or_without_evaluations(tmp_path):
    trained = [row(step, rate=step / 10) for step in range(1, 9)]
    before, between = evaluation(0, "heldout_before"), evaluation(4, "heldout")
    for name, rows in {"a": trained, "b": [before, *trained, between], "c": [before]}.items():
        draw_curve(tmp_path / f"{name}.png", rows, title="a title")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_the_curve_has_the_evaluations_between_the_steps_too():
    phases = {0: "heldout_before", 2: "heldout", 4: "heldout_after"}
    rows = [row(1), *(evaluation(step, phase) for step, phase in phases.items())]
    assert heldout_curve(rows) == [(step, 0.5, 0.25, 0.5) for step in phases]


def test_the_terminal_shows_a_curve_from_the_second_step_on():
    assert terminal_curve([row(1)], width=80) == ""
    curve = terminal_curve([row(1, rate=0.1), row(2, rate=0.9)], width=60)
    assert "pass rate" in curve
    assert all(len(line) <= 60 for line in curve.splitlines())


def test_each_value_is_averaged_with_those_before_it():
    assert smoothed([1.0, 3.0, 5.0], window=2) == [1.0, 2.0, 4.0]
    assert smoothed([]) == []
