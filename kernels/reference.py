"""Implement every kernel in NumPy: the host's kernels, and the oracle of all others.

Blocks fit the second-level cache, so a fused operation reads and writes memory once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import compute_dtype, is_floating
from dear_mpi.kernels.lookup import lookup

if TYPE_CHECKING:
    from dear_mpi.kernels.optimizers import Optimizer

BLOCK = 1 << 16  # elements per update; in smaller blocks NumPy's call overhead dominates
PAGE = 4096
# memcpy is ten times slower on AMD's Zen 3 and 4 if the target is this far after its source within a page (glibc bug
# 30994), beyond some KiB. NumPy's large arrays begin 16 bytes after a page's start, shared memory at it.
SLOW_TO_COPY, TINY_BYTES = range(1, 32), 2048
SMALL_BYTES = 16 * 1024  # copied within a microsecond
COMBINE_BLOCK = 1 << 15  # elements of a sum: two or three arrays fit the second-level cache

Step = Callable[[], object]

# They propagate NaN, so every rank sees a poisoned contribution.
OPS: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
# For integers and bool; not on GPUs.
BITWISE: dict[str, np.ufunc] = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


def blocks(count: int, block: int = BLOCK) -> Iterator[slice]:
    return (slice(start, start + block) for start in range(0, count, block))


def packer(sources: Sequence[Array], targets: Sequence[Array], scale: float) -> Step:
    return partial(run_all, [partial(copy_scaled, *pair, scale) for pair in zip(targets, sources, strict=True)])


unpacker = packer


def updater(
    grads: Array, values: Array, state: Sequence[Array], optimizer: Optimizer, *, finite: Array | None
) -> Callable[[Optimizer, int, float], object]:
    wide = compute_dtype(values.dtype)

    def update(optimizer: Optimizer, iteration: int, scale: float) -> None:
        for block in blocks(values.size) if optimizer.scope == "element" else [...]:
            narrow = values[block]
            value = narrow.astype(wide, copy=False)
            scaled = np.empty_like(value)
            copy_scaled(scaled, grads[block], scale)
            if finite is not None and not np.isfinite(scaled).all():  # the formula overwrites it
                finite[...] = False
            optimizer.update(iteration, value, scaled, [array[block] for array in state])
            if value is not narrow:
                narrow[...] = value

    return update


def combiner(dst: Array, before: Sequence[Array], after: Sequence[Array], op: str) -> Step:
    combine, terms = lookup("op", op, OPS | BITWISE), [*before, dst, *after]
    if len(terms) == 2:
        # Naming ``out`` takes 0.15 us, but NumPy wants it for min and max.
        return partial(combine, *terms, out=dst) if op in ("min", "max") else partial(combine, *terms, dst)
    wide = compute_dtype(dst.dtype) if is_floating(dst.dtype) else dst.dtype
    scratch = np.empty((2, min(dst.size, COMBINE_BLOCK)), wide)
    arrays = [flat(array) for array in (dst, *terms)]
    steps: list[Step] = []
    for block in blocks(dst.size, COMBINE_BLOCK):
        target, *sources = (array[block] for array in arrays)
        steps += combine_steps(combine, target, sources, scratch)
    return partial(run_all, steps)


def combine_steps(combine: np.ufunc, dst: Array, terms: Sequence[Array], scratch: Array) -> Iterator[Step]:
    total, other = scratch[:, : dst.size]
    if scratch.dtype == dst.dtype:
        first, second, *middle, last = terms
        yield partial(combine, first, second, out=total)
        yield from (partial(combine, total, term, out=total) for term in middle)
        yield partial(combine, total, last, out=dst)
        return
    # A ufunc that casts would allocate buffers in every call
    yield partial(np.copyto, total, terms[0])
    for term in terms[1:]:
        yield partial(np.copyto, other, term)
        yield partial(combine, total, other, out=total)
    yield partial(np.copyto, dst, total, casting="unsafe")


def run_all(steps: Sequence[Step]) -> None:
    for step in steps:
        step()


def flat(array: Array) -> Array:
    if array.ndim != 1 and not array.flags.c_contiguous:
        raise ValueError(f"arrays of several axes must be contiguous, not of strides {array.strides}")
    return array.reshape(-1)


def copier(dst: Array, src: Array, scale: float) -> Step:
    if scale != 1 or dst.dtype != src.dtype:
        return partial(copy_scaled, dst, src, scale)
    near = (dst.ctypes.data - src.ctypes.data) % PAGE in SLOW_TO_COPY
    if near and dst.nbytes > TINY_BYTES and dst.itemsize in (1, 2, 4, 8):
        dst, src = (array.view(f"u{array.itemsize}") for array in (dst, src))
        return partial(np.bitwise_or, src, src, out=dst)
    if dst.nbytes <= SMALL_BYTES and dst.flags.c_contiguous and src.flags.c_contiguous:
        # Half the time of np.copyto, which gives up the interpreter lock.
        target, source = (array.reshape(-1).view("u1").data for array in (dst, src))
        return partial(target.__setitem__, slice(None), source)
    return partial(np.copyto, dst, src)


def event() -> None:
    pass


def allocate(nbytes: int) -> Array:
    """Allocate whole pages (see ``SLOW_TO_COPY``)."""
    memory = np.empty(nbytes + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + nbytes]


pinned = allocate  # for a device that is the host


def copy_scaled(dst: Array, src: Array, scale: float) -> None:
    dtype = compute_dtype(dst.dtype, src.dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # ``updater`` reports an overflow by ``finite``
        if scale == 1:
            np.copyto(dst, src, casting="unsafe")
        else:
            np.multiply(src, dtype.type(scale), out=dst, dtype=dtype, casting="unsafe")
