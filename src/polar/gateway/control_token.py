"""The token of the control API, in a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from polar.errors import ConfigError

__all__ = ["load_token"]

_FEWEST_CHARS = 16


def load_token(path: Path) -> str:
    """Read the token, or make one where there is no file.

    Raises:
        ConfigError: The file can be read by others, holds no token, or cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(path)
    except OSError as error:
        raise _unusable(path, f"cannot be made: {error}") from error
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token


def _read(path: Path) -> str:
    try:
        with path.open() as file:
            others = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, f"cannot be read: {error}") from error
    if others:
        raise ConfigError(
            "the control token can be read or written by others",
            where=str(path),
            fix="Make it your own: chmod 600, and a new token if others have seen it.",
        )
    if len(token) < _FEWEST_CHARS:
        raise _unusable(path, f"holds no token of {_FEWEST_CHARS} characters or more")
    return token


def _unusable(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"the control token's file {what}",
        where=str(path),
        fix="Name a file in a folder that you may write to; it is made if it is not there.",
    )
