"""Looks at a folder that an agent has left, without trusting anything in it.

The agent's processes are dead, so nothing changes while it is looked at; but links may lead out,
pipes may block a reader, and files may be huge. Nothing outside the folder is ever opened, nothing
but regular files is ever opened, and no more than a limit is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Missing", "Unreadable", "WorkFolder"]


class Unreadable(Exception):
    """What was asked for is not there in the form it was asked for; the text says why."""


class Missing(Unreadable):
    """Nothing is there."""


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """A folder to look at."""

    path: Path
    max_bytes: int = 1 << 20
    """A larger file is not read."""

    def status(self, path: str) -> os.stat_result:
        """Look at an entry itself, not at what it links to.

        Raises:
            Missing: It does not exist.
            Unreadable: It lies behind a link that leads out.
        """
        return self._lstat(self._entry(path))

    def target_status(self, path: str) -> os.stat_result:
        """Look at an entry, or at what it links to if that is in the folder.

        Raises:
            Missing: It does not exist.
            Unreadable: It leads out.
        """
        return self._lstat(self._target(path))

    def link_target(self, path: str) -> str:
        """Read where a symbolic link leads, as it was written.

        Raises:
            Unreadable: It is no symbolic link.
        """
        if not stat.S_ISLNK(self.status(path).st_mode):
            raise Unreadable("is not a symbolic link")
        return _printable(os.readlink(self._entry(path)))

    def read(self, path: str) -> bytes:
        """Read a regular file; a link is followed if it stays in the folder.

        Raises:
            Unreadable: It does not exist, is not a regular file, is too large or leads out.
        """
        target = self._target(path)
        if not stat.S_ISREG(self._lstat(target).st_mode):
            raise Unreadable("is not a regular file")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with open(os.open(target, flags), "rb") as file:
                data = file.read(self.max_bytes + 1)
        except OSError as error:
            raise Unreadable(f"cannot be read: {error.strerror}") from error
        if len(data) > self.max_bytes:
            raise Unreadable(f"is larger than {self.max_bytes} bytes")
        return data

    def unexpected(self, expected: frozenset[str]) -> Iterator[str]:
        """Find what is neither expected nor a folder on the way to something expected.

        An unexpected folder is named and not looked into.

        Args:
            expected: Paths relative to the folder.
        """
        on_the_way = {path[:i] for path in expected for i, char in enumerate(path) if char == "/"}
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            for name, is_dir in self._list(folder):
                path = f"{folder}/{name}" if folder else name
                if is_dir and path in on_the_way:
                    waiting.append(path)
                elif path not in expected:
                    yield _printable(path)
                elif is_dir:
                    waiting.append(path)

    def _list(self, folder: str) -> list[tuple[str, bool]]:
        try:
            with os.scandir(os.path.join(self._root(), folder)) as found:
                return [(each.name, each.is_dir(follow_symlinks=False)) for each in found]
        except OSError as error:
            raise Unreadable(f"the folder {folder!r} cannot be listed: {error.strerror}") from error

    def _root(self) -> str:
        if self.path.is_symlink() or not self.path.is_dir():
            raise Unreadable("is in a work folder that has been replaced")
        return os.path.realpath(self.path)

    def _entry(self, path: str) -> str:
        folder, name = os.path.split(path)
        parent = self._inside(os.path.realpath(os.path.join(self._root(), folder)))
        return os.path.join(parent, name)

    def _target(self, path: str) -> str:
        return self._inside(os.path.realpath(self._entry(path)))

    def _inside(self, real: str) -> str:
        root = self._root()
        if real != root and not real.startswith(root + os.sep):
            raise Unreadable("is a link that leads out of the work folder")
        return real

    @staticmethod
    def _lstat(real: str) -> os.stat_result:
        try:
            return os.lstat(real)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Missing("does not exist") from error
        except OSError as error:
            raise Unreadable(f"cannot be looked at: {error.strerror}") from error


def _printable(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")
