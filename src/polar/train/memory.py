"""Gives memory that was freed back to the system."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["release_freed_memory"]


def release_freed_memory() -> None:
    """Return what the C library's allocator keeps of freed memory; does nothing but on glibc.

    Tensors of ever new sizes fragment its heap: a run of SmolLM2-135M holds 3.6 GB and keeps 4 GB
    more after one step, growing with each.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return
