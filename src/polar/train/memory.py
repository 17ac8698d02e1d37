"""Keep memory that was freed: training allocates the same large tensors batch after batch."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

# Parameters of glibc's mallopt, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8


def keep_freed_memory() -> bool:
    """Let glibc's allocator reuse freed memory in place of returning it to the system.

    By default every large tensor is a fresh mapping whose pages the kernel must clear at first
    touch: 10 to 20% of a training step on a virtual machine. The whole process is affected; its
    peak memory is about the same, but stays occupied. One arena is used, for the arenas of other
    threads cannot hold large blocks.

    Returns:
        Whether it was done; other C libraries are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1))
    return all([mallopt(name, value) == 1 for name, value in settings])
