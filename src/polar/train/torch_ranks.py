"""Ranks that torchrun started: words through gloo, numbers through NCCL where there are GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from polar.errors import ConfigError, RankLost

__all__ = ["TorchRanks"]

T = TypeVar("T")

_WORDS_TIMEOUT = timedelta(days=30)
"""The other ranks wait while rank 0 collects sessions, and for the slowest rank of a step. That a
rank is gone shows at once, by its connections."""
_NUMBERS_TIMEOUT = timedelta(minutes=30)
"""Numbers are exchanged only when every rank has said that it is ready."""

# PyTorch before 2.13 has other names for these, and its gloo no form that takes a list of tensors.
_has_single = hasattr(dist, "reduce_scatter_single")
_scatter = dist.reduce_scatter_single if _has_single else dist.reduce_scatter_tensor
_gather = dist.all_gather_single if _has_single else dist.all_gather_into_tensor


class TorchRanks:
    """The ranks of `torch.distributed`, one process each, on one machine.

    Args:
        local_rank: Which GPU is this rank's, where there are any.

    Raises:
        ConfigError: There are fewer GPUs than ranks.
        RankLost: The ranks do not find each other.
    """

    def __init__(self, local_rank: int) -> None:
        self.broken = False
        self.device: torch.device | None = _device(local_rank)
        numbers = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        with self._link():
            dist.init_process_group(numbers, timeout=_NUMBERS_TIMEOUT)
            self._words = dist.new_group(backend="gloo", timeout=_WORDS_TIMEOUT)
        self.rank: int = dist.get_rank()
        self.size: int = dist.get_world_size()

    def close(self) -> None:
        """Take the connections down, unless a rank is gone: that could wait for it."""
        if not self.broken:
            dist.destroy_process_group()

    def tell(self, words: Sequence[object]) -> None:
        """Hand every rank its own words."""
        with self._link():
            dist.scatter_object_list([None], list(words), src=0, group=self._words)

    def hear(self) -> object:
        """Wait for what rank 0 tells."""
        heard: list[Any] = [None]
        with self._link():
            dist.scatter_object_list(heard, None, src=0, group=self._words)
        return cast(object, heard[0])

    def gathered(self, words: T) -> list[T]:
        """Exchange words."""
        found: list[Any] = [None] * self.size
        with self._link():
            dist.all_gather_object(found, words, group=self._words)
        return cast(list[T], found)

    def scattered(self, whole: Tensor) -> Tensor:
        """Add up what every rank has, and return this rank's part."""
        part = whole.new_empty(whole.numel() // self.size)
        with self._link():
            _scatter(part, whole)
        return part

    def whole(self, part: Tensor) -> Tensor:
        """Put the parts of all ranks together."""
        found = part.new_empty(part.numel() * self.size)
        with self._link():
            _gather(found, part)
        return found

    def norm(self, part: Tensor) -> Tensor:
        """Compute the norm of the whole from the norm of each rank's part."""
        squares = part.square()
        with self._link():
            dist.all_reduce(squares)
        return squares.sqrt()

    @contextmanager
    def _link(self) -> Iterator[None]:
        """Tell a broken connection from other errors."""
        if self.broken:
            raise _lost("an earlier failure has left the ranks out of step")
        try:
            yield
        except RuntimeError as error:
            self.broken = True
            raise _lost(str(error).partition("\n")[0]) from error
        except BaseException:
            self.broken = True
            raise


def _lost(why: str) -> RankLost:
    return RankLost(
        f"another process of the training is gone or does not answer ({why})",
        fix="See above which one ended and why, then resume; finished sessions are kept.",
    )


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(
            f"rank {local_rank} has no GPU: there are {count}",
            where="--ranks",
            fix=f"Start at most {count} ranks.",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
