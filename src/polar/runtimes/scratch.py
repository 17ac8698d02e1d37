"""Temporary folders that are removed whatever a harness did to their permissions."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

__all__ = ["scratch_folder"]


@asynccontextmanager
async def scratch_folder() -> AsyncIterator[Path]:
    """Make a folder that only this user can enter; leaving the context removes it."""
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="polar-"))
    try:
        yield folder
    finally:
        await asyncio.to_thread(_remove, folder)


def _remove(folder: Path) -> None:
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
