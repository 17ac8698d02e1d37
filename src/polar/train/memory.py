"""Memory: what is freed is reused within a pass and given back after it; full memory is told of."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from polar.errors import TrainingError
from polar.train.tree_batch import TreeBatch

__all__ = ["release_freed_memory", "reusing_memory", "room_for"]

# Parameters of glibc's mallopt and their defaults, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_DEFAULT_TRIM_THRESHOLD = 128 * 1024
_DEFAULT_MMAP_MAX = 65536
_NEVER = 2**31 - 1


@contextmanager
def reusing_memory() -> Iterator[None]:
    """Let glibc's allocator keep freed memory until the end of the block, and then return all.

    By default every large tensor is a fresh mapping whose pages the kernel clears at first touch:
    10 to 20% of a training pass on a virtual machine. The whole process is affected. It is held to
    one arena from then on, for the arenas of other threads cannot hold large blocks.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        libc.mallopt(_M_MMAP_MAX, _DEFAULT_MMAP_MAX)
        libc.mallopt(_M_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD)
        release_freed_memory()


@contextmanager
def room_for(batches: Iterable[TreeBatch]) -> Iterator[None]:
    """Say of memory that is full what it did not hold, and what makes that smaller.

    Raises:
        TrainingError: The block ran out of memory, the GPU's or the machine's.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        full = _full_memory(error)
        if full is None:
            raise
        longest = 1 + max(int(batch.position_ids.max(initial=0)) for batch in batches)
        raise TrainingError(
            f"{full} is full; the step's longest session has {longest:,} tokens ({_reason(error)})",
            where="train",
            fix="Resume with a lower train.max_tokens_per_batch; if that is not enough, with a"
            " lower train.max_trace_tokens, which leaves out and counts what is longer.",
        ) from error


def _reason(error: Exception) -> str:
    """Give the sentence of an error that names the size, where there is one."""
    text = str(error)
    sentence = (text.partition("err == 0. ")[2] or text).partition(".")[0]
    return sentence or type(error).__name__


def _full_memory(error: MemoryError | RuntimeError) -> str | None:
    """Say which memory an error is about; None: it is about something else."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU's memory"
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        return "the machine's memory"  # PyTorch has no type of its own for this one
    return None


def release_freed_memory() -> None:
    """Return what the C library's allocator keeps of freed memory; does nothing but on glibc.

    Tensors of ever new sizes fragment its heap: a run of SmolLM2-135M holds 3.6 GB and keeps 4 GB
    more after one step, growing with each.
    """
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL("libc.so.6")
        return libc if libc.mallopt and libc.malloc_trim else None
    except (OSError, AttributeError):
        return None
