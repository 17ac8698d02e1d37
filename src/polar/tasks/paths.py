"""Keeps the files of a task inside its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from polar.errors import ConfigError
from polar.tasks.problems import Refused

__all__ = ["check_path", "check_paths", "lay_out"]

_MAX_NAME_BYTES = 255


def check_path(path: str) -> str:
    """Accept a path only if it is plain, relative and stays inside the folder it is relative to.

    Args:
        path: Names joined by `/`.

    Returns:
        The same path.

    Raises:
        Refused: Says what is wrong and how to write it.
    """
    names = path.split("/")
    if path.startswith("/"):
        raise Refused(f"the path {path!r} is absolute", fix="Write it relative to the folder.")
    if ".." in names:
        raise Refused(f"the path {path!r} leaves its folder", fix="Remove the `..`.")
    if "" in names or "." in names:
        raise Refused(
            f"the path {path!r} has an empty or `.` part", fix="Write it like `notes/a.txt`."
        )
    if "\0" in path:
        raise Refused(f"the path {path!r} has a NUL character", fix="Remove it.")
    if any(len(name.encode()) > _MAX_NAME_BYTES for name in names):
        what = f"the path {path[:40]!r}... has a name of over {_MAX_NAME_BYTES} bytes"
        raise Refused(what, fix="Choose a shorter name.")
    return path


def check_paths(files: Mapping[str, str]) -> None:
    """Accept a set of files only if all of them can exist side by side in one folder.

    Raises:
        Refused: A path is not plain, or a file is also the folder of another one.
    """
    for path in files:
        check_path(path)
        for end in (i for i, char in enumerate(path) if char == "/"):
            if path[:end] in files:
                what = f"{path[:end]!r} is a file and also the folder of {path!r}"
                raise Refused(what, fix="Rename one of them.")


def lay_out(files: Mapping[str, str], folder: Path) -> None:
    """Write files into a folder that nobody else writes to, byte for byte as UTF-8.

    Args:
        files: Path relative to `folder` -> text.
        folder: An existing folder.

    Raises:
        ConfigError: A path leaves the folder; nothing has been written then.
    """
    try:
        check_paths(files)
    except Refused as error:
        problem = error.problem
        raise ConfigError(problem.what, where=str(folder), fix=problem.fix) from error
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
