"""The kernels for CuPy arrays: launches of the sources in ``kernels/cuda``, with the functions of ``reference.py``.

Everything runs on the current stream of the thread that calls, and is over when an event says so (``events.py``).
Arrays must be contiguous, because kernels are given addresses; a bound call keeps them alive. Pinned host memory
is as good as the device's: a kernel reads it over the bus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy
import cupyx
import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.cuda_sources import kernel
from dear_mpi.kernels.dtypes import C_TYPES
from dear_mpi.kernels.launch_tables import (
    COMBINE_PART,
    PART,
    THREADS,
    address,
    block_table,
    grid_of,
    row_table,
)
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.optimizers import Optimizer

OPS = {"sum": "Sum", "prod": "Prod", "min": "Min", "max": "Max"}
MAX_STATE = 2  # arrays that an optimiser may keep: as in kernels/cuda/update.cu


@dataclass(frozen=True)
class Tables:
    """A list of tensors, described in the device's memory for one launch."""

    rows: Array
    blocks: Array
    grid: int
    keeps: Sequence[Sequence[Array]]

    @classmethod
    def of(cls, *columns: Sequence[Array]) -> Tables:
        """The tables for lists of arrays, one list per column (see ``row_table``)."""
        blocks = block_table([array.size for array in columns[0]])
        return cls(cupy.asarray(row_table(*columns)), cupy.asarray(blocks.view(np.int64)), len(blocks), columns)

    def launch(self, function: Any, scale: float) -> None:
        """Run a kernel over all of them."""
        if self.grid:
            function((self.grid,), (THREADS,), (self.rows, self.blocks, scale))


def c_type(arrays: Sequence[Array]) -> str:
    """The kernels' name for the type of a bucket, seen from its views."""
    return C_TYPES[arrays[0].dtype.name] if arrays else "float"


def packer(tensors: Sequence[Array], views: Sequence[Array], scale: float) -> Callable[[], object]:
    """A bound call that packs tensors into the views of a bucket: one launch."""
    return partial(Tables.of(tensors, views).launch, kernel("pack.cu", f"pack<{c_type(views)}>"), float(scale))


def unpacker(views: Sequence[Array], tensors: Sequence[Array], scale: float) -> Callable[[], object]:
    """A bound call that unpacks the views of a bucket into tensors: one launch."""
    return partial(Tables.of(tensors, views).launch, kernel("pack.cu", f"unpack<{c_type(views)}>"), float(scale))


def updater(
    grads: Array, values: Array, state: Sequence[Array], optimizer: Optimizer, *, finite: Array | None
) -> Callable[[Optimizer, int, float], object]:
    """A bound call that updates values and state by their gradients: one launch."""
    name, numbers = optimizer.kernel(1)
    types = [C_TYPES[array.dtype.name] for array in (values, grads)]
    function = kernel("update.cu", f"update<{', '.join([*types, name, *['double'] * len(numbers)])}>")
    own, grid = [*state, *[0] * (MAX_STATE - len(state))], grid_of(values.size)
    if not grid:
        return lambda *_: None  # CUDA refuses an empty grid

    def update(optimizer: Optimizer, iteration: int, scale: float) -> None:
        options = (np.int64(values.size), np.int64(PART), float(scale), 0 if finite is None else finite)
        numbers = map(float, optimizer.kernel(iteration)[1])
        function((grid,), (THREADS,), (values, grads, *own, *options, *numbers))

    return update


def combiner(dst: Array, before: Sequence[Array], after: Sequence[Array], op: str) -> Callable[[], object]:
    """dst = before[0] op ... op dst op after[0] op ..., from left to right: one launch, whatever their number.

    All arrays but dst may be in pinned host memory, which the kernel reads over the bus.
    """
    terms, numbers = [*before, dst, *after], (np.int64(dst.size), np.int64(COMBINE_PART))
    name = "accumulate" if len(terms) == 2 else "accumulate_all"
    function = kernel("accumulate.cu", f"{name}<{C_TYPES[dst.dtype.name]}, {lookup('op', op, OPS)}>")
    grid, addresses = grid_of(dst.size, COMBINE_PART), [address(term) for term in terms]
    if not grid:
        return lambda: None  # CUDA refuses an empty grid
    if len(terms) == 2:
        return partial(launch, function, grid, (dst, *addresses, *numbers), terms)
    table = cupy.asarray(np.array(addresses, np.int64))
    return partial(launch, function, grid, (dst, table, np.int32(len(terms)), *numbers), terms)


def launch(function: Any, grid: int, arguments: Sequence[Any], keeps: Sequence[Array]) -> None:
    """Run a kernel that has the addresses of arrays among its arguments; ``keeps`` are these arrays, kept alive."""
    function((grid,), (THREADS,), arguments)


def copier(dst: Array, src: Array, scale: float) -> Callable[[], object]:
    """dst = src * scale; one of the two may be in pinned host memory."""
    if scale != 1 or dst.dtype != src.dtype:
        return packer([src], [dst], scale)

    def copy() -> None:
        stream = cupy.cuda.get_current_stream().ptr
        cupy.cuda.runtime.memcpyAsync(*addresses, ends[1].nbytes, cupy.cuda.runtime.memcpyDefault, stream)

    addresses, ends = (address(dst), address(src)), (dst, src)  # which stay alive as long as the call does
    return copy


class StreamEvent:
    """An event of CUDA, without a clock."""

    def __init__(self) -> None:
        self.event = cupy.cuda.Event(disable_timing=True)

    def record(self) -> None:
        self.event.record()

    def synchronize(self) -> None:
        self.event.synchronize()

    def done(self) -> bool:
        return bool(self.event.done)


event = StreamEvent


def allocate(nbytes: int) -> Array:
    """Memory for communication, as bytes: from ``cudaMalloc`` itself, so that other processes can map it."""
    cupy.get_default_memory_pool().free_all_blocks()  # what CuPy keeps for later is of no use to cudaMalloc
    memory = cupy.cuda.Memory(nbytes)
    block: Array = cupy.ndarray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(memory, 0))
    return block


def pinned(nbytes: int) -> Array:
    """Pinned host memory, as bytes of a NumPy array."""
    block: Array = cupyx.empty_pinned((nbytes,), np.uint8)
    return block
