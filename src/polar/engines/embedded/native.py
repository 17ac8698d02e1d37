"""Compile the decoding kernel for a model, where the machine has a C compiler."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import as_file, files
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Decode", "compile_decode"]


class Decode(Protocol):
    """Stores the new keys and values of some rows and lets each attend; all float32, contiguous."""

    def __call__(  # noqa: PLR0913 - a kernel's operands
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        slots: Tensor,
        lengths: Tensor,
        scale: float,
    ) -> Tensor:
        """Attend.

        Args:
            query: [rows, kv_heads, group, head_dim].
            key: [rows, kv_heads, head_dim]; stored at position `length - 1`.
            value: As `key`.
            keys: [slots, kv_heads, context, head_dim].
            values: As `keys`.
            slots: int64 [rows].
            lengths: int64 [rows], tokens to attend to, the new one included.
            scale: Factor of the scores.

        Returns:
            [rows, kv_heads, group, head_dim].
        """
        ...


_FLAGS = (
    "-O3",
    "-march=native",
    "-fPIC",
    "-fopenmp",
    # What -ffast-math would allow, without its start-up code that changes the whole process.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-ffinite-math-only",
)
_COMPILE_S = 60.0


def compile_decode(head_dim: int, group: int) -> Decode | None:
    """Compile the kernel, in about 0.2 s.

    It is linked against torch's own OpenMP library, so that both use the same threads.

    Args:
        head_dim: Size of an attention head.
        group: Query heads that share a key-value head.

    Returns:
        The kernel; nothing where it cannot be had, for torch's attention serves as well, slower.
    """
    compiler = shutil.which("cc")
    openmp = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if compiler is None or not openmp or sys.platform != "linux":
        return None
    sizes = (f"-DHEAD_DIM={head_dim}", f"-DGROUP={group}")
    with (
        tempfile.TemporaryDirectory(prefix="polar-") as folder,
        as_file(files(__package__) / "decode.c") as source,
    ):
        built, library = Path(folder, "decode.o"), Path(folder, "decode.so")
        try:
            _run(compiler, "-c", *_FLAGS, *sizes, str(source), "-o", str(built))
            _run(compiler, "-shared", str(built), str(openmp[0]), "-o", str(library))
            return _bind(ctypes.CDLL(str(library)))
        except (OSError, subprocess.SubprocessError):
            return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_S)


def _bind(library: ctypes.CDLL) -> Decode:
    function = library.polar_decode
    tensor, integer = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [*[tensor] * 7, integer, integer, integer, ctypes.c_float, tensor]
    function.restype = None

    def decode(  # noqa: PLR0913 - a kernel's operands
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        slots: Tensor,
        lengths: Tensor,
        scale: float,
    ) -> Tensor:
        output = torch.empty_like(query)
        function(
            query.data_ptr(),
            key.data_ptr(),
            value.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            slots.data_ptr(),
            lengths.data_ptr(),
            query.shape[0],
            key.shape[1],
            keys.shape[2],
            scale,
            output.data_ptr(),
        )
        return output

    return decode
