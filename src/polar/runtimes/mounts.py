"""The file system that a bubblewrap sandbox sees: system folders, a work folder, nothing else."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

from polar.runtimes.launching import PACKAGE

__all__ = ["HOME", "LAUNCHER", "PYTHON", "WORK", "Mounts"]

WORK = "/workspace"
HOME = "/home/agent"
LAUNCHER = "/run/polar"
"""Folder that holds the launcher's package."""


_SYSTEM = tuple(
    Path("/") / name
    for name in "usr bin sbin lib lib32 lib64 libx32 etc opt nix gnu".split()  # noqa: SIM905
)


def _base_python() -> Path:
    """Find the interpreter that this virtual environment, if it is one, was made from."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix) / "bin" / version
    return base if base.exists() else Path(sys.executable).resolve()


PYTHON = _base_python()
"""Runs the launcher inside."""


@dataclass(frozen=True)
class Mounts:
    """Bubblewrap arguments for the file system.

    The root is an empty memory file system into which only what is listed is mounted, so the
    homes, the temporary folders and the run folder of the host need not be hidden one by one.
    """

    visible: tuple[Path, ...]
    """Host folders to show in every sandbox."""
    sized: bool
    """Whether this bubblewrap can limit the size of memory file systems."""

    def arguments(
        self,
        *,
        work: Sequence[str],
        read_only: Sequence[Path],
        passwd_fd: int,
        group_fd: int,
        scratch_mb: int,
    ) -> list[str]:
        """List the arguments for one sandbox.

        Args:
            work: `--bind` or `--ro-bind`, and the host's work folder.
            read_only: Host folders to show besides `visible`.
            passwd_fd: Descriptor of the inside's `/etc/passwd`.
            group_fd: Descriptor of the inside's `/etc/group`.
            scratch_mb: Size of each writable memory file system.
        """
        arguments = [*self._system]
        for fd, path in ((passwd_fd, "/etc/passwd"), (group_fd, "/etc/group")):
            arguments += ["--perms", "0644", "--ro-bind-data", str(fd), path]
        arguments += ["--dev", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
        for path in ("/dev/shm", "/tmp", "/home"):
            size = ["--size", str(scratch_mb * 2**20)] if self.sized else []
            arguments += ["--perms", "1777", *size, "--tmpfs", path]
        arguments += ["--remount-ro", "/dev", *_folder("/var"), "--symlink", "/tmp", "/var/tmp"]
        shown = dict.fromkeys((*self.visible, Path(sys.base_prefix), *read_only))
        for folder in shown:
            if not any(folder.is_relative_to(system) for system in _SYSTEM):
                arguments += _show(folder, folder)
        arguments += _show(PACKAGE, PurePath(LAUNCHER, PACKAGE.name))
        arguments += [*work, WORK, "--remount-ro", "/", "--chdir", WORK]
        return arguments

    @cached_property
    def _system(self) -> tuple[str, ...]:
        arguments: list[str] = []
        for path in _SYSTEM:
            if path.is_symlink():
                arguments += ["--symlink", str(path.readlink()), str(path)]
            elif path.is_dir():
                arguments += ["--ro-bind", str(path), str(path)]
        return (*arguments, *_masks(Path("/etc")))


def _show(source: Path, target: PurePath) -> list[str]:
    """Mount a host folder read-only, with parents that can be entered."""
    arguments: list[str] = []
    for parent in reversed(target.parents[:-1]):
        arguments += _folder(str(parent))
    return [*arguments, "--ro-bind", str(source), str(target)]


def _folder(path: str) -> list[str]:
    """Make a folder that every user may enter: bubblewrap's own default is closed."""
    return ["--perms", "0755", "--dir", path]


def _masks(folder: Path) -> Iterator[str]:
    """Hide what others may not read on the host: inside, the user may own it."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            mode = entry.stat(follow_symlinks=False).st_mode
            is_folder = stat.S_ISDIR(mode)
            readable = mode & (stat.S_IROTH | stat.S_IXOTH if is_folder else stat.S_IROTH)
            if stat.S_ISLNK(mode):
                continue
            if not readable:
                yield from (
                    ("--tmpfs", entry.path, "--remount-ro", entry.path)
                    if is_folder
                    else ("--ro-bind", "/dev/null", entry.path)
                )
            elif is_folder:
                yield from _masks(Path(entry.path))
