"""Sum gradients exactly, as integers: ``--wire fixed32``. Any order, algorithm and number of ranks gives the same bits.

    elements   | 32           | 32           |  blocks on a fixed grid of the flat buffer, whatever the ranks
    scales     |  2^E         |  2^E         |  a byte each: above all magnitudes, of all ranks or micro-batches
    integers   | round(x 2^(24 - E)) ...     |  below 2^24, so that 128 of them fit into 32 bits

    out    pack | find scales | all_reduce scales (max) | quantise | reduce_scatter integers | the owner decodes its sum

With ``--invariant M`` each micro-batch is quantised before anything is added, so a rank keeps its micro-batches until
the scales are known.

Error bound: add n numbers (of micro-batches, or ranks), in a block with the largest magnitude m. The result r in fp32
differs from the exact sum by at most n 2^-24 max(m, 2^-101) + 2^-24 |r|: each number is rounded by at most half a unit,
2^(E - 25), and 2^(E - 1) <= m; the owner then rounds to fp32. A block with an infinity or NaN becomes NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.training.routes import (
    FULL,
    SHARDED,
    Act,
    BucketMemory,
    Kind,
    Memory,
    Pack,
    Payload,
    Route,
    Sizes,
    all_reduce,
    reduce_scatter,
)
from dear_mpi.training.routes.invariant import Leaf, Tree

BLOCK = 32  # elements: each shard and each bucket consists of whole ones, on any number of ranks
PIECE = 1 << 14  # elements: stays in cache
BITS = 24  # those of fp32: the block's largest magnitude loses none
MOST = 1 << 31 - BITS  # numbers that 32 bits can add
LEAST, WRONG = -100, 255  # a smaller E has a unit without an inverse in fp32; the scale of a block that is not finite
EXPONENTS = np.minimum(np.arange(WRONG + 1) + LEAST, 128)  # by the byte of a scale
UNITS, INVERSES = (np.ldexp(np.float32(1), each) for each in (EXPONENTS - BITS, BITS - EXPONENTS))
UNITS[WRONG] = np.nan


@dataclass(frozen=True)
class Fixed(Tree):
    """Add one number per micro-batch, or one per rank if ``micro_batches`` is 0.

    ``copies``: the numbers that a rank keeps before its last, each in a buffer.
    """

    micro_batches: int = 0
    copies: int = 0
    scale_s: ClassVar[float] = 1.1e-9  # seconds per element and number on one core, and per call
    encode_s: ClassVar[float] = 1.2e-9
    decode_s: ClassVar[float] = 1.2e-9
    scale_call_s: ClassVar[float] = 10e-6
    encode_call_s: ClassVar[float] = 6e-6
    decode_call_s: ClassVar[float] = 5e-6

    def cut(self, micro_batches: int, ranks: int | None) -> Fixed:
        cut = Fixed(micro_batches)
        return replace(cut, copies=cut.numbers(ranks) - 1) if ranks and ranks <= micro_batches else cut

    def objection(self, ranks: int) -> str:
        many = f"{self.micro_batches} micro-batches" if self.micro_batches else f"those of {ranks} ranks"
        over = f"fixed32 adds at most {MOST} numbers without an overflow, not {many}"
        return over if (self.micro_batches or ranks) > MOST else super().objection(ranks)

    def numbers(self, ranks: int) -> int:
        """Return how many numbers the rank adds up that has most."""
        return max(map(len, self.shares(ranks))) if self.micro_batches else 1

    def sources(self, part: Sequence[int]) -> list[str]:
        """Return the buffers of a rank's numbers: the last one is where layers write."""
        return [*(f"micro-batch {number}" for number in range(len(part) - 1)), "gradients"]

    def leaves(self, part: range) -> list[Leaf]:
        return [Leaf(0, 0, buffer) for buffer in self.sources(part)]

    def addends(self, memory: Memory, rank: int, gradient: int) -> list[int]:
        if not self.micro_batches:
            return [gradient]
        return [part for _, part in self.provable(memory.size).parts(memory, rank, gradient)]

    def on_one_rank(self, memory: Memory, gradients: Sequence[int]) -> int:
        every = [part for rank, own in enumerate(gradients) for part in self.addends(memory, rank, own)]
        return memory.symbol("sum", *every)


@dataclass(frozen=True, kw_only=True)
class OfIntegers(Payload):
    adds_up: ClassVar[bool] = True
    by_element: ClassVar[bool] = True
    dtype: ClassVar[Any] = np.dtype(np.int32)
    wire: Fixed
    codes: str = "integers"

    def payload_bytes(self, of: Sizes) -> int:
        return of.ranks * of.longest * self.dtype.itemsize

    def objection(self, ranks: int) -> str:
        return self.wire.objection(ranks)


@dataclass(frozen=True, kw_only=True)
class OfNumbers(OfIntegers):
    """Read the numbers of this rank."""

    @property
    def buffers(self) -> Mapping[str, str]:  # type: ignore[override]
        return dict.fromkeys(self.wire.sources(range(self.wire.copies + 1))[:-1], "scratch")

    @property
    def reads(self) -> tuple[str, ...]:
        return ("gradients", *self.buffers)

    def numbers(self, bucket: BucketMemory) -> list[Array]:
        own = self.wire.shares(bucket.ranks)[bucket.rank] if self.wire.micro_batches else range(1)
        return [bucket.buffer(name) for name in self.wire.sources(own)]


@dataclass(frozen=True, kw_only=True)
class FindScales(OfNumbers):
    """Write the exponent E of each block's largest magnitude."""

    by_element: ClassVar[bool] = False
    dtype: ClassVar[Any] = np.dtype(np.uint8)
    codes: str = "scales"
    writes = ("scales",)

    def payload_bytes(self, of: Sizes) -> int:
        return -(-of.count // BLOCK)

    def compute_s(self, count: int, ranks: int) -> float:
        return self.act_s("scale", count * (1 + self.wire.numbers(ranks)))

    def prove(self, memory: Memory) -> None:
        memory.compute("peak", ("gradients",), self.codes)

    def bind(self, bucket: BucketMemory) -> Act:
        numbers, scales = self.numbers(bucket), bucket.buffer(self.codes)
        xp: Any = array_module(scales)

        def find(factor: float) -> None:
            for at, blocks in pieces(scales.size):
                largest = xp.abs(rows(numbers[0], at))
                for x in numbers[1:]:
                    xp.maximum(largest, xp.abs(rows(x, at)), out=largest)
                most = xp.ascontiguousarray(largest.T).max(axis=0).astype(np.float32)  # by columns in half the time
                exponents = xp.frexp(xp.maximum(most, 2.0 ** (LEAST - 1)))[1] - LEAST  # that of 0 would be 0
                scales[blocks] = xp.where(most < xp.inf, exponents, WRONG)

        return find

    def __str__(self) -> str:
        return f"find scales of blocks of {BLOCK}"


@dataclass(frozen=True, kw_only=True)
class Quantise(OfNumbers):
    """Round each number to a multiple of its block's unit, and add up the integers."""

    writes = ("integers",)

    @property
    def reads(self) -> tuple[str, ...]:
        return (*super().reads, "scales")

    def compute_s(self, count: int, ranks: int) -> float:
        return self.act_s("encode", count * self.wire.numbers(ranks))

    def prove(self, memory: Memory) -> None:
        for rank, shard in memory.places:
            addends = self.wire.addends(memory, rank, memory.read("gradients", rank, shard))
            by = memory.symbol("row", *addends), memory.read("scales", rank, shard)
            memory.write(self.codes, rank, shard, memory.symbol("code", *by))

    def bind(self, bucket: BucketMemory) -> Act:
        (first, *others), scales, integers = self.numbers(bucket), bucket.buffer("scales"), bucket.buffer(self.codes)
        xp: Any = array_module(scales)
        inverses = xp.asarray(INVERSES)

        def quantise(factor: float) -> None:
            for at, blocks in pieces(scales.size):
                by, total = inverses[scales[blocks]][:, None], rows(integers, at)
                total[...] = xp.rint(rows(first, at) * by)
                for x in others:
                    total += xp.rint(rows(x, at) * by).astype(self.dtype)

        return quantise

    def __str__(self) -> str:
        return "quantise gradients" + f" of {self.wire.micro_batches} micro-batches" * (self.wire.micro_batches > 0)


@dataclass(frozen=True, kw_only=True)
class DecodeSum(OfIntegers):
    """Turn the own shard's sums into gradients."""

    act: ClassVar[str] = "decode"
    reads = ("integers", "scales")
    writes = ("gradients",)

    def compute_s(self, count: int, ranks: int) -> float:
        return self.act_s("decode", count / ranks)

    def prove(self, memory: Memory) -> None:
        """Check that all ranks took the same scale, that of all numbers."""
        for rank in range(memory.size):
            integers, scale = (memory.read(buffer, rank, rank) for buffer in self.reads)
            kind, *codes = memory.made[integers]
            made = [memory.made[code] for code in codes] if kind == "sum" else []
            addends = [part for _, row, *_ in made for part in memory.made[row][1:]]
            gradients = dict.fromkeys(memory.made[part][1] if self.wire.micro_batches else part for part in addends)
            due = memory.symbol("max", *(memory.symbol("peak", each) for each in gradients))
            if not addends or {scale} != {due, *(used for *_, used in made)}:
                memory.forget("gradients", rank, rank)
                continue
            found = memory.symbol("sum", *addends)
            memory.write("gradients", rank, rank, found if self.wire.micro_batches else memory.symbol("code", found))

    def bind(self, bucket: BucketMemory) -> Act:
        own, place, scales = bucket.shard("gradients", bucket.rank), bucket.place(bucket.rank), bucket.buffer("scales")
        integers, scales = bucket.buffer(self.codes)[place], scales[place.start // BLOCK : place.stop // BLOCK]
        xp: Any = array_module(scales)
        units = xp.asarray(UNITS)

        def decode(factor: float) -> None:
            for at, blocks in pieces(scales.size):
                rows(own, at)[...] = rows(integers, at).astype(np.float32) * units[scales[blocks]][:, None]

        return decode

    def __str__(self) -> str:
        return "decode the own shard of integers"


def pieces(blocks: int) -> Iterator[tuple[slice, slice]]:
    """Yield the elements and blocks of each piece that stays in cache."""
    step = PIECE // BLOCK
    for start in range(0, blocks, step):
        stop = min(start + step, blocks)
        yield slice(start * BLOCK, stop * BLOCK), slice(start, stop)


def rows(x: Array, at: slice) -> Array:
    return x[at].reshape(-1, BLOCK)


def fixed(name: str, wire: Fixed, *, sharded: bool = False) -> Route:
    """Send one integer for each element, and gather decoded gradients or values."""
    scales = FindScales(wire=wire), all_reduce("scales", op="max")
    sums = Quantise(wire=wire), reduce_scatter("integers"), DecodeSum(wire=wire)
    return Route(name, (Pack(), *scales, *sums), (SHARDED if sharded else FULL).back)


FIXED = Kind(Fixed, fixed, options=())
