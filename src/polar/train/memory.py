"""Reuse of freed memory: training allocates the same large tensors batch after batch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["reusing_memory"]

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
    one arena from then on, for the arenas of other threads cannot hold large blocks. Other C
    libraries are left as they are.
    """
    try:
        libc = ctypes.CDLL(None)
        mallopt, malloc_trim = libc.mallopt, libc.malloc_trim
    except (AttributeError, OSError, TypeError):
        yield
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        mallopt(_M_MMAP_MAX, _DEFAULT_MMAP_MAX)
        mallopt(_M_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD)
        malloc_trim(0)
