"""Legs of codes: forms in which elements travel that do not add up. A sum of codes takes two shots:

    out    each rank encodes each shard | all_to_all codes | the owner of a shard decodes all codes of it, and adds up
    back   the owner encodes the sum    | all_gather codes | all ranks decode it, the owner, too: all have the same bits

A sum is encoded once, however many ranks there are. Were it encoded anew at each hop of a ring, the error would grow as
the root of their number.

With the level ``between hosts``, what is encoded is the sum of a host, of those shards that a rank serves there
(``servers`` of ``collectives/program/hosts.py``); the rows of other shards stay as they are.

Source: Wang et al., ZeRO++, arXiv 2306.10209, section 3.3 (all-to-all of codes). Error feedback: Seide et al., 1-bit
SGD, Interspeech 2014; at the owner, too, as in Tang et al., DoubleSqueeze, arXiv 1905.05957.
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

ROW_BYTES = 16  # codes of a shard begin at a multiple of so many bytes


class Wire(Protocol):
    """A form in which elements travel that does not add up: codes.

    ``out`` and ``codes`` are bytes, ``nbytes`` of them; ``x`` is a shard, flat. Where x has what is infinite or no
    number, so must what is decoded: otherwise nobody hears of it. With ``encode_s`` and ``decode_s``, the seconds of a
    core for an element, and ``encode_call_s`` and ``decode_call_s``, those of a call without elements, a simulation
    knows what codes cost.
    """

    def nbytes(self, count: int) -> int: ...
    def encode(self, x: Array, out: Array) -> None: ...
    def decode(self, codes: Array, x: Array) -> None: ...


@dataclass(frozen=True, kw_only=True)
class OfCodes(Leg):
    """An act on a line of codes.

    Attributes:
        wire: what encodes and decodes.
        codes: the line.
    """

    adds_up: ClassVar[bool] = False  # whether a sum of codes is a code of the sum
    act: ClassVar[str] = ""  # encode or decode, once for all elements; or it says itself what it computes
    wire: Any
    codes: str

    @abstractmethod
    def line_bytes(self, count: int, *, longest: int, itemsize: int, ranks: int, shapes: tuple[Shape, ...] = ()) -> int:
        """Bytes of the line for a bucket of so many elements, so many in the longest shard, of so many bytes each;
        ``shapes``: of its tensors, if it has whole ones."""

    def compute_s(self, count: int, ranks: int) -> float:
        return self.act_s(self.act, count)

    def act_s(self, act: str, count: float, calls: int = 1) -> float:
        """Seconds of ``encode`` or ``decode``: of so many elements in all, in so many calls."""
        return count * getattr(self.wire, f"{act}_s", 0.0) + calls * getattr(self.wire, f"{act}_call_s", 0.0)


@dataclass(frozen=True, kw_only=True)
class WithErrors(OfCodes):
    """It may keep what codes lose on a line of each rank's own, ``error``; or None."""

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
        """What it does to a rank's symbols of a shard."""
        code = memory.symbol("code", *(memory.read(line, rank, shard) for line in self.reads))
        memory.write(self.codes, rank, shard, code)
        for line in self.lines:
            memory.write(line, rank, shard, memory.symbol("lost", code))


@dataclass(frozen=True, kw_only=True)
class InRows(OfCodes):
    """The line has a row for each shard of the bucket, all as long as that of the longest shard."""

    wire: Wire

    def line_bytes(self, count: int, *, longest: int, itemsize: int, ranks: int, shapes: tuple[Shape, ...] = ()) -> int:
        return ranks * round_up(self.wire.nbytes(longest), ROW_BYTES)

    def pairs(self, bucket: BucketMemory, shards: Iterable[int]) -> list[tuple[Array, Array]]:
        """Gradients of these shards, with the bytes of their codes."""
        return [self.pair(bucket.shard("gradients", shard), bucket.rows(self.codes)[shard]) for shard in shards]

    def serving(self, rank: int, hosts: Sequence[int]) -> list[int]:
        """The ranks that have codes of a rank's shard for it."""
        return servers(rank, hosts if self.level else range(len(hosts)))

    def shards(self, rank: int, hosts: Sequence[int]) -> list[int]:
        """Those of which a rank has codes."""
        return served(rank, hosts if self.level else range(len(hosts)))

    def pair(self, x: Array, row: Array) -> tuple[Array, Array]:
        return x, row[: self.wire.nbytes(x.size)]


@dataclass(frozen=True, kw_only=True)
class Encode(WithErrors, InRows):
    """Write codes of this rank's gradients, a row for each shard; or of its own shard alone, into its own row.

    Attributes:
        error: a line that keeps what codes have lost, and adds it to the gradients of the next time; or none. What the
            code of the own shard has lost counts once, as a gradient of this rank.
        shard: whether the own shard alone.
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
        """Encodes gradients with what earlier codes have lost."""

        def encode(factor: float) -> None:
            for (x, row), (error, decoded) in zip(pairs, lost, strict=True):
                error += x
                self.wire.encode(error, row)
                self.wire.decode(row, decoded)
                error -= decoded

        return encode

    def sum_encoder(self, x: Array, row: Array, error: Array, decoded: Array) -> Callable[[float], object]:
        """Encodes a sum; what its code loses comes to what this rank's own codes have lost."""

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
    """Write what codes stand for into the gradients: each row into its shard.

    Attributes:
        summed: whether all rows are codes of this rank's own shard, and are added up, in the order of ranks.
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
    """Those that are not empty."""
    return [shard for shard in shards if bucket.shard("gradients", shard).size]


def each(call: Callable[[Array, Array], None], pairs: Iterable[tuple[Array, Array]], factor: float) -> None:
    """Call it with each pair."""
    for pair in pairs:
        call(*pair)


@dataclass(frozen=True, kw_only=True)
class Recall(Leg):
    """Move to the gradients what earlier codes have lost."""

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
