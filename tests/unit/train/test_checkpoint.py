"""A folder or file is whole or not there, and its predecessor survives a failed write."""

from __future__ import annotations

import pytest

from polar.train.checkpoint import replace_folder, replacing_file


def test_a_folder_takes_the_place_of_the_earlier_one(tmp_path):
    target = tmp_path / "model"
    replace_folder(target, lambda folder: (folder / "a").write_text("1"))
    replace_folder(target, lambda folder: (folder / "b").write_text("2"))
    assert [p.name for p in target.iterdir()] == ["b"]


def test_a_failed_write_leaves_the_earlier_folder(tmp_path):
    target = tmp_path / "model"
    replace_folder(target, lambda folder: (folder / "a").write_text("1"))

    def fail(folder):
        (folder / "b").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        replace_folder(target, fail)
    assert (target / "a").read_text() == "1"
    replace_folder(target, lambda folder: (folder / "c").write_text("3"))
    assert [p.name for p in target.iterdir()] == ["c"]


def write_half(path):
    with replacing_file(path) as fresh:
        fresh.write_text("half")
        raise OSError(28, "No space left on device")


def test_a_failed_write_leaves_the_earlier_file(tmp_path):
    target = tmp_path / "state"
    with replacing_file(target) as fresh:
        fresh.write_text("1")
    with pytest.raises(OSError, match="No space"):
        write_half(target)
    assert target.read_text() == "1"
