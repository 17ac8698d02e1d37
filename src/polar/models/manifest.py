"""A list of a folder's files with their hashes, to notice a damaged copy before it is used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["MANIFEST_NAME", "check_folder", "sha256_of", "write_manifest"]

MANIFEST_NAME = "polar-manifest.json"

_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Entry:
    size_bytes: int
    mtime_ns: int
    sha256: str


def write_manifest(folder: Path, *, source: str) -> None:
    """List every file of a finished folder.

    Args:
        folder: A folder without subfolders.
        source: Where its content is from, for people.
    """
    files = {path.name: asdict(_entry(path)) for path in sorted(folder.iterdir())}
    manifest = {"version": _VERSION, "source": source, "files": files}
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def check_folder(folder: Path, *, full: bool = False) -> str | None:
    """Compare a folder with its manifest.

    Args:
        folder: The folder.
        full: Hash every file. Otherwise only those whose size or time of change is another.

    Returns:
        What is wrong with it, for people; None where nothing is.
    """
    entries = _read(folder / MANIFEST_NAME)
    if entries is None:
        return "it has no readable manifest"
    for name, entry in entries.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        found = path.stat()
        if found.st_size != entry.size_bytes:
            return f"{name} has {found.st_size} bytes, not {entry.size_bytes}"
        changed = full or found.st_mtime_ns != entry.mtime_ns
        if changed and sha256_of(path) != entry.sha256:
            return f"{name} has other content than when it was made"
    return None


def sha256_of(path: Path) -> str:
    """Hash a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entry(path: Path) -> _Entry:
    found = path.stat()
    return _Entry(found.st_size, found.st_mtime_ns, sha256_of(path))


def _read(path: Path) -> Mapping[str, _Entry] | None:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["version"] != _VERSION:
            return None
        return {name: _Entry(**entry) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None
