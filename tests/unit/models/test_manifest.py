"""The manifest of a model folder: every damage is noticed."""

import os
from pathlib import Path

import pytest

from polar.models import check_folder
from polar.models.manifest import MANIFEST_NAME, write_manifest


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "weights").write_bytes(b"1234")
    (tmp_path / "config.json").write_text("{}")
    write_manifest(tmp_path, source="a test")
    return tmp_path


def change_unseen(path: Path, content: bytes) -> None:
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("full", [False, True])
def test_an_untouched_folder_is_sound(folder, full):
    assert check_folder(folder, full=full) is None


def test_a_folder_that_was_copied_is_sound(folder):
    os.utime(folder / "weights", (1, 1))

    assert check_folder(folder) is None


def test_a_missing_file_is_named(folder):
    (folder / "weights").unlink()

    assert check_folder(folder) == "weights is missing"


def test_a_file_cut_short_is_named(folder):
    change_unseen(folder / "weights", b"12")

    assert check_folder(folder) == "weights has 2 bytes, not 4"


def test_changed_content_is_noticed_by_its_time(folder):
    (folder / "weights").write_bytes(b"1235")
    os.utime(folder / "weights", (1, 1))

    assert "weights" in str(check_folder(folder))


def test_changed_content_of_the_same_size_and_time_is_noticed_by_the_full_check(folder):
    change_unseen(folder / "weights", b"1235")

    assert check_folder(folder) is None
    assert "weights" in str(check_folder(folder, full=True))


@pytest.mark.parametrize("text", [None, "{", '{"version": 99, "files": {}}'])
def test_a_folder_without_a_readable_manifest_is_not_sound(folder, text):
    (folder / MANIFEST_NAME).unlink()
    if text is not None:
        (folder / MANIFEST_NAME).write_text(text)

    assert check_folder(folder) == "it has no readable manifest"
