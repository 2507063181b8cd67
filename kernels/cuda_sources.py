"""Compile the kernels in ``kernels/cuda``: when first used, once per device; CuPy keeps the result on disk."""

from functools import cache
from pathlib import Path
from typing import Any

import cupy

SOURCES = Path(__file__).parent / "cuda"

# Without fused multiply-add every kernel gives the bits of its NumPy reference. That costs no time, because kernels
# are bound by memory.
OPTIONS = ("--std=c++17", "--fmad=false")


def source(name: str) -> str:
    """A ``.cu`` file with its header pasted in: CuPy's cache is keyed by the text, and would miss a new header."""
    header = (SOURCES / "elements.cuh").read_text(encoding="utf-8")
    return (SOURCES / name).read_text(encoding="utf-8").replace('#include "elements.cuh"', header)


@cache
def kernel(name: str, expression: str) -> Any:
    """A kernel by its file and its template, such as ``accumulate<float, Sum>``."""
    module = cupy.RawModule(code=source(name), options=OPTIONS, name_expressions=[expression])
    return module.get_function(expression)
