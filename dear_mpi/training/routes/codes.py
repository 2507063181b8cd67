"""Define stages (legs) for codes: compressed payloads that do not add up. Summing codes takes two shots:

    out    each rank encodes each shard | all_to_all codes | the owner of a shard decodes all codes of it, and adds up

    back   the owner encodes the sum    | all_gather codes | all ranks decode it, so all have the same bits

A sum is encoded once. Encoding at each hop of a ring would let the error grow as the root of the number of hops.

At the level ``between hosts``, a rank encodes the host's sums of the shards that it serves (``servers`` of
``collectives/program/hosts.py``), and leaves other rows unchanged.

Source: Wang et al., ZeRO++, arXiv 2306.10209, section 3.3 (all-to-all of codes). Error feedback: Seide et al., 1-bit
SGD, Interspeech 2014; at the owner as well, as in Tang et al., DoubleSqueeze, arXiv 1905.05957.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from dear_mpi.collectives.program.hosts import served, servers
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import compute_dtype
from dear_mpi.kernels.slab import round_up
from dear_mpi.training.routes.legs import BucketMemory, Leg, Shape
from dear_mpi.training.routes.memory import Memory

ROW_BYTES = 16  # codes of a shard begin at a multiple of 16 bytes


class Wire(Protocol):
    """Encode elements in a wire format that does not add up.

    ``out`` and ``codes`` have ``nbytes`` bytes; ``x`` is a flat shard. An infinity or NaN in ``x`` must survive
    decoding, or the error stays hidden. Simulations use ``encode_s`` and ``decode_s`` (seconds per element on one
    core), ``encode_call_s`` and ``decode_call_s`` (seconds per empty call).
    """

    def nbytes(self, count: int) -> int: ...
    def encode(self, x: Array, out: Array) -> None: ...
    def decode(self, codes: Array, x: Array) -> None: ...


@dataclass(frozen=True, kw_only=True)
class OfCodes(Leg):
    """Act on a line of codes.

    Attributes:
        wire: encodes and decodes.
        codes: the name of the line.
    """

    adds_up: ClassVar[bool] = False  # whether the sum of codes is the code of the sum
    act: ClassVar[str] = ""  # encode or decode, once for all elements; "" if the leg overrides compute_s
    wire: Any
    codes: str

    @abstractmethod
    def line_bytes(self, count: int, *, longest: int, itemsize: int, ranks: int, shapes: tuple[Shape, ...] = ()) -> int:
        """Return the line's bytes for ``count`` elements, ``longest`` in the longest shard.

        ``shapes`` are given if buckets consist of whole tensors.
        """

    def compute_s(self, count: int, ranks: int) -> float:
        return self.act_s(self.act, count)

    def act_s(self, act: str, count: float, calls: int = 1) -> float:
        """Return the seconds to ``encode`` or ``decode`` ``count`` elements in ``calls`` calls."""
        return count * getattr(self.wire, f"{act}_s", 0.0) + calls * getattr(self.wire, f"{act}_call_s", 0.0)


@dataclass(frozen=True, kw_only=True)
class WithErrors(OfCodes):
    """Keep the rounding error of codes on each rank's line ``error``, unless it is None."""

    error: str | None = None

    @property
    def lines(self) -> Mapping[str, str]:  # type: ignore[override]
        return {self.error: "own"} if self.error else {}

    @property
    def reads(self) -> tuple[str, ...]:
        return ("gradients", *self.lines)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.codes, *self.lines)

    def prove_at(self, memory: Memory, rank: int, shard: int) -> None:
        code = memory.symbol("code", *(memory.read(line, rank, shard) for line in self.reads))
        memory.write(self.codes, rank, shard, code)
        for line in self.lines:
            memory.write(line, rank, shard, memory.symbol("lost", code))


@dataclass(frozen=True, kw_only=True)
class InRows(OfCodes):
    """Give each shard of the bucket a row, as long as the longest shard's row."""

    wire: Wire

    def line_bytes(self, count: int, *, longest: int, itemsize: int, ranks: int, shapes: tuple[Shape, ...] = ()) -> int:
        return ranks * round_up(self.wire.nbytes(longest), ROW_BYTES)

    def pairs(self, bucket: BucketMemory, shards: Iterable[int]) -> list[tuple[Array, Array]]:
        """Pair the gradients of shards with their rows."""
        return [self.pair(bucket.shard("gradients", shard), bucket.rows(self.codes)[shard]) for shard in shards]

    def serving(self, rank: int, hosts: Sequence[int]) -> list[int]:
        """List the ranks that hold codes of a rank's shard."""
        return servers(rank, hosts if self.level else range(len(hosts)))

    def shards(self, rank: int, hosts: Sequence[int]) -> list[int]:
        """List the shards that a rank has codes for."""
        return served(rank, hosts if self.level else range(len(hosts)))

    def pair(self, x: Array, row: Array) -> tuple[Array, Array]:
        return x, row[: self.wire.nbytes(x.size)]


@dataclass(frozen=True, kw_only=True)
class Encode(WithErrors, InRows):
    """Encode this rank's gradients, one row per shard.

    Attributes:
        error: a line that keeps the rounding error and adds it to the next gradients, or None. The error of the own
            shard's code counts once, as a gradient of this rank.
        shard: encode only the own shard.
    """

    shard: bool = False

    def compute_s(self, count: int, ranks: int) -> float:
        elements, calls = (count / ranks, 1) if self.shard else (count, ranks)
        acts = ("encode", "decode") if self.error else ("encode",)
        return sum(self.act_s(act, elements, calls) for act in acts)

    def prove(self, memory: Memory) -> None:
        for rank in range(memory.size):
            for shard in [rank] if self.shard else self.shards(rank, memory.hosts):
                self.prove_at(memory, rank, shard)

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        shards = filled(bucket, [bucket.rank] if self.shard else self.shards(bucket.rank, bucket.hosts))
        pairs = self.pairs(bucket, shards)
        if self.error is None or not pairs:
            return partial(each, self.wire.encode, pairs)
        lost = [(bucket.shard(self.error, shard), bucket.shard("gradients", shard).copy()) for shard in shards]
        return self.sum_encoder(*pairs[0], *lost[0]) if self.shard else self.encoder(pairs, lost)

    def encoder(self, pairs: list[tuple[Array, Array]], lost: list[tuple[Array, Array]]) -> Callable[[float], object]:
        """Encode gradients plus the errors of earlier codes."""

        def encode(factor: float) -> None:
            for (x, row), (error, decoded) in zip(pairs, lost, strict=True):
                error += x
                self.wire.encode(error, row)
                self.wire.decode(row, decoded)
                error -= decoded

        return encode

    def sum_encoder(self, x: Array, row: Array, error: Array, decoded: Array) -> Callable[[float], object]:
        """Encode a sum and add its error to this rank's error line."""

        def encode(factor: float) -> None:
            self.wire.encode(x, row)
            self.wire.decode(row, decoded)
            error[...] += x - decoded

        return encode

    def __str__(self) -> str:
        what = "the own shard of gradients" if self.shard else "the host's sums" if self.level else "gradients"
        return f"encode {what} to {self.codes}{f', with {self.error}' if self.error else ''}"


@dataclass(frozen=True, kw_only=True)
class Decode(InRows):
    """Decode each row into its shard of the gradients.

    Attributes:
        summed: whether all rows are codes of this rank's shard, to be added up in rank order.
    """

    summed: bool = False
    writes: ClassVar[tuple[str, ...]] = ("gradients",)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.codes,)

    def compute_s(self, count: int, ranks: int) -> float:
        return self.act_s("decode", count, ranks)

    def prove(self, memory: Memory) -> None:
        for rank in range(memory.size):
            rows = self.serving(rank, memory.hosts) if self.summed else self.shards(rank, memory.hosts)
            codes = [memory.read(self.codes, rank, row) for row in rows]
            if self.summed:
                memory.write("gradients", rank, rank, memory.symbol("sum", *codes))
            for shard, code in () if self.summed else zip(rows, codes, strict=True):
                memory.write("gradients", rank, shard, code)

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        if not self.summed:
            pairs = self.pairs(bucket, filled(bucket, self.shards(bucket.rank, bucket.hosts)))
            return partial(each, self.wire.decode, [(row, x) for x, row in pairs])
        own = bucket.shard("gradients", bucket.rank)
        if not own.size:
            return lambda factor: None
        rows = [self.pair(own, bucket.rows(self.codes)[row])[1] for row in self.serving(bucket.rank, bucket.hosts)]
        total, part = (own.astype(compute_dtype(own.dtype)) for _ in range(2))

        def decode(factor: float) -> None:
            self.wire.decode(rows[0], total)
            for row in rows[1:]:
                self.wire.decode(row, part)
                total[...] += part
            own[...] = total

        return decode

    def __str__(self) -> str:
        return f"decode {self.codes}{', add up' * self.summed}"


def filled(bucket: BucketMemory, shards: Iterable[int]) -> list[int]:
    return [shard for shard in shards if bucket.shard("gradients", shard).size]


def each(call: Callable[[Array, Array], None], pairs: Iterable[tuple[Array, Array]], factor: float) -> None:
    for pair in pairs:
        call(*pair)


@dataclass(frozen=True, kw_only=True)
class Recall(Leg):
    """Move the errors of earlier codes to the gradients."""

    error: str

    @property
    def lines(self) -> Mapping[str, str]:  # type: ignore[override]
        return {self.error: "own"}

    @property
    def reads(self) -> tuple[str, ...]:
        return ("gradients", self.error)

    @property
    def writes(self) -> tuple[str, ...]:
        return self.reads

    def prove(self, memory: Memory) -> None:
        for rank, shard in memory.places:
            both = (memory.read(line, rank, shard) for line in self.reads)
            memory.write("gradients", rank, shard, memory.symbol("code", *both))
            memory.write(self.error, rank, shard, memory.symbol("zero"))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        gradients, error = map(bucket.line, self.reads)

        def recall(factor: float) -> None:
            gradients[...] += error
            error[...] = 0

        return recall

    def __str__(self) -> str:
        return f"recall {self.error}"
