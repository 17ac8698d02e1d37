"""The environment variables that Polar reads, all of them, in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Environment", "environment"]

_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says."""

    cache: Path
    """`POLAR_CACHE`: folder of converted models and installed harnesses; `~/.cache/polar`."""
    data: Path
    """`POLAR_DATA`: folder of the sessions that `polar run` keeps; else `polar` in
    `XDG_DATA_HOME`, which is `~/.local/share` where it is not set."""
    debug: bool
    """`POLAR_DEBUG`: `1` shows the stack trace of an error, as `--debug` does."""
    ranks: int = 1
    """`WORLD_SIZE`: how many processes torchrun has started to train together."""
    rank: int = 0
    """`RANK`: which of them this is."""
    local_rank: int = 0
    """`LOCAL_RANK`: which of those on this machine, and so which GPU is its own."""


def environment(variables: Mapping[str, str] = os.environ) -> Environment:
    """Read the environment.

    Args:
        variables: Where to read; the process's own environment if left out.
    """
    cache = variables.get("POLAR_CACHE") or "~/.cache/polar"
    share = variables.get("XDG_DATA_HOME") or "~/.local/share"
    data = variables.get("POLAR_DATA") or f"{share}/polar"
    return Environment(
        cache=Path(cache).expanduser().absolute(),
        data=Path(data).expanduser().absolute(),
        debug=variables.get("POLAR_DEBUG", "").lower() in _TRUE,
        ranks=_number(variables, "WORLD_SIZE", 1),
        rank=_number(variables, "RANK", 0),
        local_rank=_number(variables, "LOCAL_RANK", 0),
    )


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    """Read a number that torchrun sets; on a cluster others may set the name to something else."""
    value = variables.get(name, "")
    return int(value) if value.isdecimal() and "LOCAL_RANK" in variables else default
