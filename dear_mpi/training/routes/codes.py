"""Define stages for codes: compressed payloads of gradients. Summing codes that do not add up takes two shots:

    out    each rank encodes each shard | all_to_all codes | the owner decodes and adds all codes of its shard
    back   the owner encodes the sum    | all_gather codes | all ranks decode it, so all have the same bits

A sum is encoded once: at each hop of a ring, the error would grow as the root of the number of hops. ``between hosts``,
a rank encodes the host's sums of the shards that it serves (``collectives/program/hosts.py``).

Codes of ``int8``, the only ones of core; extras publish others:

    elements   | 256               | 256               | the rest |
    blocks     | scale scale scale | numbers of 8 bits ...

A scale is the block's largest magnitude divided by the largest number. The rounding error is at most half a step: 1/254
of that magnitude. A block with an infinity or NaN becomes NaN; one with a scale below the smallest normal number
becomes zero. An element takes 1 + 1/64 bytes.

``encode_s`` and ``decode_s`` are seconds per element on one core, ``encode_call_s`` and ``decode_call_s`` per call.

Source: Wang et al., ZeRO++, arXiv 2306.10209, section 3.3 (all-to-all of codes). Error feedback: Seide et al., 1-bit
SGD, Interspeech 2014; at the owner: Tang et al., DoubleSqueeze, arXiv 1905.05957. Block-wise
quantisation: Dettmers et al., 8-bit Optimizers, ICLR 2022, section 2.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from dear_mpi.collectives.program.hosts import INSIDE, served, servers
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import compute_dtype
from dear_mpi.kernels.slab import round_up
from dear_mpi.training.routes.find import SUMS_BACK, VALUES_BACK, Kind
from dear_mpi.training.routes.route import ROW_BYTES, Payload, Route, Sizes
from dear_mpi.training.routes.stages import (
    Act,
    BucketMemory,
    Pack,
    Stage,
    all_gather,
    all_to_all,
    reduce_scatter,
)

if TYPE_CHECKING:
    from dear_mpi.training.routes.proof import Memory

BLOCK = 256
PIECE = 256 * BLOCK  # elements: stays in cache
SCALE = np.dtype(np.float32)
LEAST = np.finfo(SCALE).tiny  # a smaller scale has no inverse


class Wire(Protocol):
    """Encode a flat shard in ``nbytes`` bytes that do not add up. An infinity or NaN must survive decoding."""

    def nbytes(self, count: int) -> int: ...
    def encode(self, x: Array, out: Array) -> None: ...
    def decode(self, codes: Array, x: Array) -> None: ...


@dataclass(frozen=True)
class Blocks:
    """Use whole numbers from ``-largest`` to ``largest``, a byte each."""

    encode_s, decode_s = 1.5e-9, 0.8e-9
    encode_call_s, decode_call_s = 17e-6, 4e-6
    largest = 127.0
    dtype: ClassVar[Any] = np.dtype(np.int8)

    def nbytes(self, count: int) -> int:
        return SCALE.itemsize * -(-count // BLOCK) + self.number_bytes(count)

    def number_bytes(self, count: int) -> int:
        return count

    def encode(self, x: Array, out: Array) -> None:
        xp: Any = array_module(x)
        for values, scales, codes in self.pieces(x, out):
            with np.errstate(all="ignore"):
                most = xp.abs(values).max(axis=1).astype(SCALE) / SCALE.type(self.largest)
                scales[...] = xp.where(most < xp.inf, xp.where(most < LEAST, 0, most), xp.nan)
                inverse = xp.where(scales > 0, 1 / scales, 0).astype(SCALE)
                self.write(values * inverse[:, None], codes)

    def decode(self, codes: Array, x: Array) -> None:
        for values, scales, numbers in self.pieces(x, codes):
            values[...] = self.read(numbers, values.shape) * scales[:, None]

    def pieces(self, x: Array, codes: Array) -> Iterator[tuple[Array, Array, Array]]:
        border = SCALE.itemsize * -(-x.size // BLOCK)
        scales, numbers = codes[:border].view(SCALE), codes[border : self.nbytes(x.size)]
        full = x.size - x.size % BLOCK
        for start in range(0, x.size, PIECE):
            for first, last in ((start, min(start + PIECE, full)), (max(start, full), min(start + PIECE, x.size))):
                if first < last:
                    rows = x[first:last].reshape(-1, min(BLOCK, last - first))
                    at = slice(self.number_bytes(first), self.number_bytes(last))
                    yield rows, scales[first // BLOCK :][: len(rows)], numbers[at]

    def write(self, scaled: Array, codes: Array) -> None:
        array_module(scaled).rint(scaled, out=scaled)
        codes.view(self.dtype)[...] = scaled.reshape(-1)

    def read(self, codes: Array, shape: tuple[int, ...]) -> Array:
        numbers: Array = codes.view(self.dtype).reshape(shape)
        return numbers


@dataclass(frozen=True, kw_only=True)
class WithErrors(Payload):
    """Keep what codes lose on each rank's buffer ``error`` for the next gradients; None to drop it."""

    error: str | None = None

    @property
    def buffers(self) -> Mapping[str, str]:  # type: ignore[override]
        return {self.error: "own"} if self.error else {}

    @property
    def reads(self) -> tuple[str, ...]:
        return ("gradients", *self.buffers)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.codes, *self.buffers)

    def prove_at(self, memory: Memory, places: Iterable[tuple[int, int]]) -> None:
        for rank, shard in places:
            code = memory.symbol("code", *(memory.read(buffer, rank, shard) for buffer in self.reads))
            memory.write(self.codes, rank, shard, code)
            for buffer in self.buffers:
                memory.write(buffer, rank, shard, memory.symbol("lost", code))


@dataclass(frozen=True, kw_only=True)
class InRows(Payload):
    """Give each shard of the bucket a row, as long as the longest shard's row."""

    wire: Wire

    def payload_bytes(self, of: Sizes) -> int:
        return of.ranks * round_up(self.wire.nbytes(of.longest), ROW_BYTES)

    def serving(self, rank: int, hosts: Sequence[int]) -> list[int]:
        return servers(rank, hosts if self.level else range(len(hosts)))

    def shards(self, rank: int, hosts: Sequence[int]) -> list[int]:
        return served(rank, hosts if self.level else range(len(hosts)))

    def rows(self, bucket: BucketMemory, shards: Iterable[int]) -> list[tuple[Array, Array, int]]:
        """List gradients, row and number of each shard that is not empty."""
        pairs = ((bucket.shard("gradients", shard), bucket.rows(self.codes)[shard], shard) for shard in shards)
        return [(x, row[: self.wire.nbytes(x.size)], shard) for x, row, shard in pairs if x.size]


@dataclass(frozen=True, kw_only=True)
class Encode(WithErrors, InRows):
    """Encode this rank's gradients, one row per shard.

    ``shard``: encode only the own shard, a sum; its error counts once, as a gradient of this rank.
    """

    shard: bool = False

    def compute_s(self, count: int, ranks: int) -> float:
        elements, calls = (count / ranks, 1) if self.shard else (count, ranks)
        acts = ("encode", "decode") if self.error else ("encode",)
        return sum(self.act_s(act, elements, calls) for act in acts)

    def encoded(self, rank: int, hosts: Sequence[int]) -> list[int]:
        return [rank] if self.shard else self.shards(rank, hosts)

    def prove(self, memory: Memory) -> None:
        ranks = range(memory.size)
        self.prove_at(memory, ((rank, shard) for rank in ranks for shard in self.encoded(rank, memory.hosts)))

    def bind(self, bucket: BucketMemory) -> Act:
        rows = self.rows(bucket, self.encoded(bucket.rank, bucket.hosts))
        errors = [(bucket.shard(self.error, shard), x.copy()) for x, _, shard in rows if self.error]

        def encode(factor: float) -> None:
            for x, row, _ in rows:
                self.wire.encode(x, row)

        def encode_with_errors(factor: float) -> None:
            for (x, row, _), (error, decoded) in zip(rows, errors, strict=True):
                if self.shard:
                    self.wire.encode(x, row)
                    self.wire.decode(row, decoded)
                    error[...] += x - decoded
                else:
                    error += x
                    self.wire.encode(error, row)
                    self.wire.decode(row, decoded)
                    error -= decoded

        return encode_with_errors if self.error else encode

    def __str__(self) -> str:
        what = "the own shard of gradients" if self.shard else "the host's sums" if self.level else "gradients"
        return f"encode {what} to {self.codes}{f', with {self.error}' if self.error else ''}"


@dataclass(frozen=True, kw_only=True)
class Decode(InRows):
    """Decode each row into its shard of the gradients.

    ``summed``: all rows are codes of this rank's shard, to be added in rank order.
    """

    summed: bool = False
    writes = ("gradients",)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.codes,)

    def compute_s(self, count: int, ranks: int) -> float:
        return self.act_s("decode", count, ranks)

    def prove(self, memory: Memory) -> None:
        for rank in range(memory.size):
            if self.summed:
                codes = [memory.read(self.codes, rank, row) for row in self.serving(rank, memory.hosts)]
                memory.write("gradients", rank, rank, memory.symbol("sum", *codes))
            else:
                for shard in self.shards(rank, memory.hosts):
                    memory.write("gradients", rank, shard, memory.read(self.codes, rank, shard))

    def bind(self, bucket: BucketMemory) -> Act:
        if not self.summed:
            rows = self.rows(bucket, self.shards(bucket.rank, bucket.hosts))

            def decode(factor: float) -> None:
                for x, row, _ in rows:
                    self.wire.decode(row, x)

            return decode
        own, serving = bucket.shard("gradients", bucket.rank), self.serving(bucket.rank, bucket.hosts)
        first, *others = [bucket.rows(self.codes)[rank][: self.wire.nbytes(own.size)] for rank in serving]
        total, part = (own.astype(compute_dtype(own.dtype)) for _ in range(2))

        def add_up(factor: float) -> None:
            self.wire.decode(first, total)
            for row in others:
                self.wire.decode(row, part)
                total[...] += part
            own[...] = total

        return add_up if own.size else lambda factor: None

    def __str__(self) -> str:
        return f"decode {self.codes}{', add up' * self.summed}"


@dataclass(frozen=True, kw_only=True)
class Recall(Stage):
    error: str

    @property
    def buffers(self) -> Mapping[str, str]:  # type: ignore[override]
        return {self.error: "own"}

    @property
    def reads(self) -> tuple[str, ...]:
        return ("gradients", self.error)

    writes = reads

    def prove(self, memory: Memory) -> None:
        memory.compute("code", self.reads, "gradients")
        for rank, shard in memory.places:
            memory.write(self.error, rank, shard, memory.symbol("zero"))

    def bind(self, bucket: BucketMemory) -> Act:
        gradients, error = map(bucket.buffer, self.reads)

        def recall(factor: float) -> None:
            gradients[...] += error
            error[...] = 0

        return recall

    def __str__(self) -> str:
        return f"recall {self.error}"


def coded(name: str, wire: Wire, *, sharded: bool = False, error: str | None = "residual", level: str = "") -> Route:
    """Send gradients as codes and keep each rank's rounding error.

    Args:
        sharded: gather updated values in their own type; otherwise sums also travel as codes.
        error: the flat buffer for the rounding error; None to drop it.
        level: ``between hosts`` to send gradients and sums uncoded inside a host. Each rank then first adds its error
            to its gradients: after a change of buckets or hosts, it may no longer serve the error's shards.
    """
    codes: dict[str, Any] = {"wire": wire, "codes": "codes"}
    of_level = codes | {"level": level}
    out = Encode(**of_level, error=error), all_to_all("codes", level=level), Decode(**of_level, summed=True)
    first: tuple[Stage, ...] = (reduce_scatter("gradients", level=INSIDE),) if level else ()
    first = (Recall(error=error), *first) if level and error else first
    back: tuple[Stage, ...] = VALUES_BACK
    if not sharded:
        gathered = (all_gather("gradients", level=INSIDE),) if level else ()
        sums = Encode(**codes, error=error, shard=True), all_gather("codes", level=level), Decode(**of_level)
        back = (*sums, *gathered, *SUMS_BACK[1:])
    return Route(name, (Pack(), *first, *out), back)


INT8 = Kind(Blocks, coded, options=("error=no", "between"))
