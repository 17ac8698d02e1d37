"""What the process that gives servers their weights and those that only sample tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["KnownWeights", "Lost", "News"]


@dataclass(frozen=True, slots=True)
class Lost:
    """A server is not to be used until it has shown that it is well."""

    address: str
    reason: str
    drop: bool
    """Whether its running calls are given up as well: it is silent, or took no command."""


@dataclass(frozen=True, slots=True)
class KnownWeights:
    """What is known of the servers' weights."""

    version: int
    """What every server must sample from to serve."""
    labels: Mapping[str, Mapping[str, int]]
    """Address -> what the server calls its weights -> their version."""
    loads: Mapping[str, tuple[int, ...]]
    """Address -> versions that it was given, in order."""


News = Lost | KnownWeights
