"""Folders and files that are either whole or not there, and a look at whether they still are."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from polar.errors import TrainingError

__all__ = ["check_state", "replace_folder", "replacing_file"]


def check_state(path: Path) -> None:
    """Read a state that torch has saved against the checksums in it.

    Raises:
        TrainingError: It is missing, cut off, or holds a byte that was not written.
    """
    try:
        with zipfile.ZipFile(path) as file:
            broken = file.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        raise _unusable(path, str(error)) from error
    if broken is not None:
        raise _unusable(path, f"{broken} has another checksum than when it was written")


def replace_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a new folder beside `path`, and put it in place when it is on disk.

    Args:
        path: The folder that is made or replaced.
        write: Gets an empty folder to write into.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir()
    write(fresh)
    for file in sorted(fresh.rglob("*")):
        _sync(file)
    _sync(fresh)
    if path.exists():
        path.rename(old)
    fresh.rename(path)
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yield a name to write to, which becomes `path` when it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    yield fresh
    _sync(fresh)
    fresh.replace(path)
    _sync(path.parent)


def _unusable(path: Path, why: str) -> TrainingError:
    return TrainingError(
        f"the state to go on from is damaged: {why}",
        where=str(path),
        fix="Restore it from a copy, or begin a new run; finished sessions are kept.",
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
