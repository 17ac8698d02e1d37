"""Folders and files that are either whole or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replace_folder", "replacing_file"]


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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
