"""Define stages of a sketch: send few counters instead of elements that are mostly zero on all ranks.

    out    a bit for each element | all_to_all bits | the owner of a shard joins them | all_gather bits
           fill counters          | reduce_scatter counters       where they do not fit: reduce_scatter gradients
    back                            all_gather counters | peel                           all_gather gradients

The bits, equal on all ranks, decide the branch before any counter is sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dear_mpi.contrib.wires.sketch import Bits, Sketch
from dear_mpi.kernels.slab import CHUNK_BYTES, round_up
from dear_mpi.training.routes import (
    MAIN,
    BucketMemory,
    Encode,
    InRows,
    Kind,
    Memory,
    Pack,
    Payload,
    Route,
    Sizes,
    Unpack,
    Update,
    all_gather,
    all_to_all,
    reduce_scatter,
)

INDEX = "index"


@dataclass(frozen=True, kw_only=True)
class Join(InRows):
    """Combine the rows, bits of this rank's shard: write the bits set in any of them."""

    codes: str = INDEX

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.codes,)

    writes = reads

    def prove(self, memory: Memory) -> None:
        for rank in range(memory.size):
            bits = [memory.read(self.codes, rank, shard) for shard in range(memory.size)]
            memory.write(self.codes, rank, rank, memory.symbol("sum", *bits))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        rows, own = bucket.rows(self.codes), bucket.rank

        def join(factor: float) -> None:
            for row in (*rows[:own], *rows[own + 1 :]):
                rows[own] |= row

        return join

    def __str__(self) -> str:
        return f"join {self.codes}"


@dataclass(frozen=True, kw_only=True)
class OfCounters(Payload):
    adds_up: ClassVar[bool] = True
    wire: Sketch
    codes: str = "counters"

    def payload_bytes(self, of: Sizes) -> int:
        return round_up(self.wire.kept(of.count) * of.itemsize, of.ranks * CHUNK_BYTES)


@dataclass(frozen=True, kw_only=True)
class Fill(OfCounters):
    """Write the gradients' counters if all elements can be recovered from them."""

    act: ClassVar[str] = "encode"
    reads: ClassVar[tuple[str, ...]] = ("gradients", INDEX)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.codes,)

    def prove(self, memory: Memory) -> None:
        memory.fits = memory.assumed
        bits = {rank: [memory.read(INDEX, rank, shard) for shard in range(memory.size)] for rank in range(memory.size)}
        for rank, shard in memory.places:
            gradient = memory.read("gradients", rank, shard)
            memory.write(self.codes, rank, shard, memory.symbol("code", gradient, *bits[rank]))
            joined = memory.weighed[gradient].keys() <= memory.weighed[bits[rank][shard]].keys()
            if not joined or bits[rank] != bits[0]:  # missing or differing bits
                memory.forget(self.codes, rank, shard)

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        gradients, counters, bits = bucket.buffer("gradients"), bucket.buffer(self.codes), Bits()
        rows = [(row, bucket.shard("gradients", shard).size) for shard, row in enumerate(bucket.rows(INDEX))]

        def fill(factor: float) -> None:
            marks = np.concatenate([bits.marks(row, count) for row, count in rows])
            bucket.found = self.wire.peeling(marks, counters.size)
            bucket.judge(fits=bucket.found is not None)
            if bucket.fits:
                self.wire.encode(gradients, bucket.found, counters)

        return fill

    def __str__(self) -> str:
        return f"fill {self.codes}"


@dataclass(frozen=True, kw_only=True)
class Peel(OfCounters):
    act: ClassVar[str] = "decode"
    writes: ClassVar[tuple[str, ...]] = ("gradients",)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.codes, INDEX)

    def prove(self, memory: Memory) -> None:
        for rank, shard in memory.places:
            by = [memory.read(buffer, rank, at) for buffer in self.reads for at in range(memory.size)]
            memory.write("gradients", rank, shard, memory.symbol("code", by[shard], *by))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        gradients, counters = bucket.buffer("gradients"), bucket.buffer(self.codes)
        return lambda factor: self.wire.decode(counters, bucket.found, gradients)

    def __str__(self) -> str:
        return f"peel {self.codes}"


def sketched(name: str, wire: Sketch, *, sharded: bool = False, error: str | None = "residual") -> Route:
    """Send counters if few elements are nonzero, otherwise all gradients; nothing is lost.

    Raises ValueError for sharded updates.
    """
    if sharded:
        raise ValueError(f"update must be full: {name.partition(' over ')[2]} has counters of elements of all shards")
    bits = Bits()
    index = Encode(wire=bits, codes=INDEX), all_to_all(INDEX), Join(wire=bits), all_gather(INDEX)
    sums = reduce_scatter("counters", fits=True), reduce_scatter("gradients", fits=False)
    gathered = all_gather("gradients", fits=False), all_gather("counters", fits=True), Peel(wire=wire, fits=True)
    return Route(name, (Pack(), *index, Fill(wire=wire), *sums), (*gathered, Update(on=MAIN), Unpack()))


def ratio(text: str) -> float:
    """Parse how many elements share a counter. Raises ValueError unless it is a number from 2 to 1000."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 2 <= found <= 1000:
        raise ValueError(f"the ratio of a sketch must be a number from 2 to 1000, not {text!r}")
    return found


SKETCH = Kind(Sketch, sketched, ratio, "sketch:10", ("fp32", "fp64"), ())
