"""What `polar doctor` looks at on this machine; each check says what it found and what to do."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from polar import __version__, harnesses, models, runtimes
from polar.config.families import settings_model
from polar.errors import PolarError
from polar.harnesses.base import Harness

__all__ = ["NEEDED_DISK_GB", "Finding", "check_machine"]

_NEEDED_MEMORY_GB = 6
NEEDED_DISK_GB = 4
_NEEDED_NODE = 20
_ASK_S = 20
_TRAINING = "pip install 'polar-rl[train]'"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    state: Literal["ok", "warn", "fail"]
    """`warn`: something optional will not work; `fail`: Polar does not work."""
    found: str
    fix: str | None = None
    """What to do about it; absent where nothing is to be done."""


def check_machine(cache: Path) -> Iterator[Finding]:
    """Look at everything on this machine that a run may need, one finding after the other.

    Args:
        cache: Polar's folder of converted models and installed harnesses.
    """
    yield _python()
    yield _package("torch")
    yield _package("transformers")
    yield _processors()
    yield _memory()
    yield _disk("cache folder", cache)
    yield _disk("working folder", Path.cwd())
    yield _sandbox()
    yield _node()
    for name in harnesses.names():
        finding = _harness(name, cache)
        if finding is not None:
            yield finding
    for name in models.names():
        yield _model(name, cache)


def _python() -> Finding:
    found = f"Polar {__version__} on Python {platform.python_version()} ({sys.executable})"
    return Finding("versions", "ok", found)


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        return Finding(name, "warn", "not installed: no training here", f"Run {_TRAINING}.")


def _processors() -> Finding:
    usable = len(os.sched_getaffinity(0))
    return Finding("processors", "ok", f"{usable} of {os.cpu_count()} usable")


def _memory() -> Finding:
    total_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = f"{total_gb:.1f} GB"
    if total_gb >= _NEEDED_MEMORY_GB:
        return Finding("memory", "ok", found)
    fix = f"Training the demo's model takes {_NEEDED_MEMORY_GB} GB; set train.lora for less."
    return Finding("memory", "warn", found, fix)


def _disk(subject: str, folder: Path) -> Finding:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free_gb = shutil.disk_usage(existing).free / 2**30
    found = f"{folder}, {free_gb:.1f} GB free"
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        fix = "Make it writable" + (
            ", or set POLAR_CACHE to another folder." if subject == "cache folder" else "."
        )
        return Finding(subject, "fail", f"{folder} cannot be written: {error.strerror}", fix)
    if free_gb < NEEDED_DISK_GB:
        return Finding(subject, "warn", found, f"Free {NEEDED_DISK_GB} GB before a run.")
    return Finding(subject, "ok", found)


def _sandbox() -> Finding:
    choice = runtimes.default_runtime()
    protected = [name for name, held in choice.runtime.protections().items() if held]
    found = f"{choice.name} works; protects: {', '.join(protected) or 'nothing'}"
    if choice.warning is None:
        return Finding("sandbox", "ok", found)
    return Finding(
        "sandbox", "warn", choice.warning, "Install bubblewrap (`apt install bubblewrap`)."
    )


def _node() -> Finding:
    node = shutil.which("node")
    fix = f"Install Node {_NEEDED_NODE} or newer to use --harness pi."
    if node is None:
        return Finding("node", "warn", "not on PATH", fix)
    try:
        asked = subprocess.run(
            [node, "--version"], capture_output=True, text=True, timeout=_ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("node", "warn", f"{node} does not start: {error}", fix)
    found = f"{asked.stdout.strip()} ({node})"
    major = asked.stdout.removeprefix("v").partition(".")[0]
    if not major.isdecimal() or int(major) < _NEEDED_NODE:
        return Finding("node", "warn", found, fix)
    return Finding("node", "ok", found)


def _harness(name: str, cache: Path) -> Finding | None:
    """Look for a harness; None for one that says nothing without settings."""
    declared = settings_model("harness", name)
    if any(field.is_required() for field in declared.model_fields.values()):
        return None
    given = {"cache": cache} if "cache" in declared.model_fields else {}
    make: Callable[..., Harness] = harnesses.load(name)
    harness = make(declared(**given))
    try:
        installation = harness.find()
    except PolarError as error:
        return Finding(f"harness {name}", "warn", error.what, error.fix)
    found = f"{installation.version} ({installation.executable})"
    known = installation.known_version
    if known is None or installation.version == known:
        return Finding(f"harness {name}", "ok", found)
    return Finding(
        f"harness {name}",
        "warn",
        f"{found}; the preset is known to work with {known}",
        f"Try it with `polar doctor --harness {name}`, or have {known} of its own: "
        f"`polar install {name}`.",
    )


def _model(name: str, cache: Path) -> Finding:
    folder = cache / "models" / name
    if not folder.exists():
        return Finding(f"model {name}", "ok", "not made yet; the first run makes it")
    damage = models.check_folder(folder, full=True)
    if damage is None:
        return Finding(f"model {name}", "ok", f"every file as it was made ({folder})")
    return Finding(f"model {name}", "warn", f"damaged: {damage}", "The next run makes it anew.")
