"""Where harnesses are installed, and what a sandbox must show for them to run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["interpreter_of", "own_folder", "python_folders"]


def own_folder(cache: Path, name: str) -> Path:
    """Name the folder of Polar's own installation of a harness, `NAME-VERSION`."""
    return cache.expanduser().absolute() / "harnesses" / name


def interpreter_of(script: Path) -> Path | None:
    """Read the interpreter from the first line of a Python console script."""
    with script.open("rb") as file:
        first = file.readline()
    if not first.startswith(b"#!"):
        return None
    python = Path(os.fsdecode(first[2:].strip()))
    return python if python.is_absolute() and python.exists() else None


def python_folders(python: Path) -> tuple[Path, ...]:
    """List the folders without which a virtual environment's interpreter does not start.

    Args:
        python: `ENVIRONMENT/bin/python`, or an interpreter outside of any environment.
    """
    environment = python.parent.parent
    folders = [environment]
    link = python
    while link.is_symlink():
        link = Path(os.path.normpath(link.parent / link.readlink()))
        folders.append(link.parent.parent)
    folders.append(link.resolve().parent.parent)
    return tuple(_without_nested(folders))


def _without_nested(folders: Iterable[Path]) -> list[Path]:
    kept: list[Path] = []
    for folder in sorted(set(folders), key=lambda folder: len(folder.parts)):
        if not any(folder.is_relative_to(above) for above in kept):
            kept.append(folder)
    return kept
