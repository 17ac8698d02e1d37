"""Temporary folders that are removed whatever a harness did to their permissions.

A process that is killed leaves its folders behind. Each holds a lock that ends with the process, so
that a later one can tell them from those that are in use, and remove them.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["remove_folder", "remove_stale", "scratch_folder"]

_PREFIX = "polar-"
_LOCK = ".lock"
_KNOWN = frozenset({"home", "tmp", "work", "grader", f"{_LOCK}.new"})
_UNLOCKED_S = 3600.0
"""A folder without a lock is being made, or was left by a release that had none."""


@asynccontextmanager
async def scratch_folder() -> AsyncIterator[Path]:
    """Make a folder that only this user can enter; leaving the context removes it."""
    folder, lock = await asyncio.to_thread(_make)
    try:
        yield folder
    finally:
        await asyncio.to_thread(remove_folder, folder)
        lock.close()


def remove_stale(parent: Path | None = None) -> int:
    """Remove the folders of processes of this user that are gone, and return their number.

    Args:
        parent: Where they are; absent: where this process makes its own.
    """
    removed = 0
    for folder in (parent or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
        try:
            if _is_stale(folder):
                remove_folder(folder)
                removed += 1
        except OSError:  # another process removes it as well, or it is not ours after all
            continue
    return removed


def _make() -> tuple[Path, BinaryIO]:
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    # Locked before it has its name, so that nobody sees a lock that is not held.
    lock = (folder / f"{_LOCK}.new").open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / f"{_LOCK}.new").rename(folder / _LOCK)
    return folder, lock


def _is_stale(folder: Path) -> bool:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return False
    try:
        lock = (folder / _LOCK).open("rb")
    except FileNotFoundError:
        known = {each.name for each in folder.iterdir()} <= _KNOWN
        return known and time.time() - found.st_mtime > _UNLOCKED_S
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def remove_folder(folder: Path) -> None:
    """Remove a folder that a harness had, if it is there."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
