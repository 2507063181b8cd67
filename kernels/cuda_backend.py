"""Run the sources of ``kernels/cuda`` on CuPy arrays, with the functions of ``reference.py``.

Kernels run on the thread's current stream. Arrays must be contiguous; bound calls keep them alive.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cupy
import cupyx
import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import C_TYPES
from dear_mpi.kernels.launch_tables import COMBINE_PART, PART, THREADS, address, block_table, grid_of, row_table
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.optimizers import Optimizer

SOURCES = Path(__file__).parent / "cuda"
# Without fused multiply-add, every kernel gives its NumPy reference's bits, at no cost: kernels are bound by
# memory.
OPTIONS = ("--std=c++17", "--fmad=false")
OPS = {"sum": "Sum", "prod": "Prod", "min": "Min", "max": "Max"}
MAX_STATE = 2


def source(name: str) -> str:
    """Inline the header: CuPy caches by text, and would miss its changes."""
    header = (SOURCES / "elements.cuh").read_text(encoding="utf-8")
    return (SOURCES / name).read_text(encoding="utf-8").replace('#include "elements.cuh"', header)


@cache
def kernel(name: str, expression: str) -> Any:
    """Return a kernel by file and template, such as ``accumulate<float, Sum>``; cached on disk."""
    module = cupy.RawModule(code=source(name), options=OPTIONS, name_expressions=[expression])
    return module.get_function(expression)


def launching(function: Any, grid: int, arguments: Sequence[Any], keeps: Sequence[Any]) -> Callable[[], object]:
    """Keep ``keeps`` alive for a launch; CUDA refuses an empty grid."""
    return partial(launch, function, grid, arguments, keeps) if grid else lambda: None


def launch(function: Any, grid: int, arguments: Sequence[Any], keeps: Sequence[Any]) -> None:
    function((grid,), (THREADS,), arguments)


def packer(tensors: Sequence[Array], views: Sequence[Array], scale: float) -> Callable[[], object]:
    return mover("pack", tensors, views, scale)


def unpacker(views: Sequence[Array], tensors: Sequence[Array], scale: float) -> Callable[[], object]:
    return mover("unpack", tensors, views, scale)


def mover(name: str, tensors: Sequence[Array], views: Sequence[Array], scale: float) -> Callable[[], object]:
    rows, blocks = row_table(tensors, views), block_table([tensor.size for tensor in tensors])
    function = kernel("pack.cu", f"{name}<{C_TYPES[views[0].dtype.name]}>") if tensors else None
    tables = cupy.asarray(rows), cupy.asarray(blocks.view(np.int64))
    return launching(function, len(blocks), (*tables, float(scale)), (tensors, views))


def updater(
    grads: Array, values: Array, state: Sequence[Array], optimizer: Optimizer, *, finite: Array | None
) -> Callable[[Optimizer, int, float], object]:
    name, numbers = optimizer.kernel(1)
    types = [C_TYPES[array.dtype.name] for array in (values, grads)]
    function = kernel("update.cu", f"update<{', '.join([*types, name, *['double'] * len(numbers)])}>")
    own, grid = [*state, *[0] * (MAX_STATE - len(state))], grid_of(values.size)
    if not grid:
        return lambda *_: None

    def update(optimizer: Optimizer, iteration: int, scale: float) -> None:
        options = (np.int64(values.size), np.int64(PART), float(scale), 0 if finite is None else finite)
        numbers = map(float, optimizer.kernel(iteration)[1])
        function((grid,), (THREADS,), (values, grads, *own, *options, *numbers))

    return update


def combiner(dst: Array, before: Sequence[Array], after: Sequence[Array], op: str) -> Callable[[], object]:
    terms, numbers = [*before, dst, *after], (np.int64(dst.size), np.int64(COMBINE_PART))
    name = "accumulate" if len(terms) == 2 else "accumulate_all"
    function = kernel("accumulate.cu", f"{name}<{C_TYPES[dst.dtype.name]}, {lookup('op', op, OPS)}>")
    addresses: list[Any] = [address(term) for term in terms]
    if len(terms) > 2:
        addresses = [cupy.asarray(np.array(addresses, np.int64)), np.int32(len(terms))]
    return launching(function, grid_of(dst.size, COMBINE_PART), (dst, *addresses, *numbers), terms)


def copier(dst: Array, src: Array, scale: float) -> Callable[[], object]:
    if scale != 1 or dst.dtype != src.dtype:
        return packer([src], [dst], scale)

    def copy() -> None:
        stream = cupy.cuda.get_current_stream().ptr
        cupy.cuda.runtime.memcpyAsync(*addresses, ends[1].nbytes, cupy.cuda.runtime.memcpyDefault, stream)

    addresses, ends = (address(dst), address(src)), (dst, src)
    return copy


def event() -> SimpleNamespace:
    made = cupy.cuda.Event(disable_timing=True)
    return SimpleNamespace(record=made.record, Wait=made.synchronize, Test=lambda: bool(made.done))


def allocate(nbytes: int) -> Array:
    """Call ``cudaMalloc``, so that other processes can map the memory."""
    cupy.get_default_memory_pool().free_all_blocks()  # cudaMalloc cannot use the pool's memory
    memory = cupy.cuda.Memory(nbytes)
    return cupy.ndarray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(memory, 0))


def pinned(nbytes: int) -> Array:
    return cupyx.empty_pinned((nbytes,), np.uint8)
