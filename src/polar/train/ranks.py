"""The processes that train one model together, and the one that trains alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from polar.errors import RankLost, TrainingError

__all__ = ["Alone", "Ranks", "Undone", "exposed", "together"]

T = TypeVar("T")


class Ranks(Protocol):
    """What the ranks of a run say to each other: words (any object) and numbers.

    Every rank must ask for the same things in the same order. `rank` is 0 for the one that has
    the sessions and says what is to be done; the others do it.
    """

    rank: int
    size: int
    device: torch.device | None
    """Where this rank computes; absent: where the model given is."""
    broken: bool
    """Whether some rank is gone or out of step, so that nothing can be asked any more."""

    def tell(self, words: Sequence[object]) -> None:
        """Hand every rank its own words; from rank 0 only."""
        ...

    def hear(self) -> object:
        """Wait for what rank 0 tells, however long; on the others."""
        ...

    def gathered(self, words: T) -> list[T]:
        """Exchange words: those of every rank, in order."""
        ...

    def scattered(self, whole: Tensor) -> Tensor:
        """Add up what every rank has, and return this rank's part: of [ranks * part], [part]."""
        ...

    def whole(self, part: Tensor) -> Tensor:
        """Put the parts of all ranks together: of [part] each, [ranks * part]."""
        ...

    def norm(self, part: Tensor) -> Tensor:
        """Compute the norm of the whole from the norm of each rank's part."""
        ...


class Alone:
    """One process: all parts are whole."""

    rank = 0
    size = 1
    device: torch.device | None = None
    broken = False

    def tell(self, words: Sequence[object]) -> None:
        """Tell nobody."""

    def hear(self) -> object:
        """Fail, for there is nobody to hear."""
        raise AssertionError("one process has nobody to hear")

    def gathered(self, words: T) -> list[T]:
        """Return the words."""
        return [words]

    def scattered(self, whole: Tensor) -> Tensor:
        """Return the whole."""
        return whole

    def whole(self, part: Tensor) -> Tensor:
        """Return the part."""
        return part

    def norm(self, part: Tensor) -> Tensor:
        """Return the norm."""
        return part


class Undone(Exception):
    """Rank 0 was told why something was not done; the others wait for what comes next."""


@contextmanager
def together(ranks: Ranks) -> Iterator[None]:
    """Leave the block when every rank has got through it, or fail on all of them.

    Nothing inside may need another rank, unless leaving it halfway marks the ranks as broken.

    Raises:
        TrainingError: It failed on another rank (on rank 0).
        Undone: It failed on some rank (on the others).
    """
    try:
        yield
    except BaseException as error:
        if ranks.broken:
            raise
        ranks.gathered(f"{type(error).__name__}: {error}")
        if ranks.rank and isinstance(error, Exception):
            raise Undone from error
        raise
    failures = [(rank, why) for rank, why in enumerate(ranks.gathered("")) if why]
    if not failures:
        return
    if ranks.rank:
        raise Undone
    rank, why = failures[0]
    raise TrainingError(why, where=f"rank {rank}", fix="Go on from the last saved state.")


@contextmanager
def exposed(ranks: Ranks) -> Iterator[None]:
    """Mark the ranks as broken if the block, in which they need each other, is left halfway."""
    try:
        yield
    except TrainingError as error:  # the same on every rank, or the loss of one
        ranks.broken = ranks.broken or isinstance(error, RankLost)
        raise
    except BaseException:
        ranks.broken = True
        raise
