"""Define stages for codes: compressed payloads of gradients. Summing codes that do not add up takes two shots:

    out    each rank encodes each shard | all_to_all codes | the owner decodes and adds all codes of its shard
    back   the owner encodes the sum    | all_gather codes | all ranks decode it, so all have the same bits

A sum is encoded once: at each hop of a ring, the error would grow as the root of the number of hops. ``between hosts``,
a rank encodes the host's sums of the shards that it serves (``collectives/program/hosts.py``).

Source: Wang et al., ZeRO++, arXiv 2306.10209, section 3.3 (all-to-all of codes). Error feedback: Seide et al., 1-bit
SGD, Interspeech 2014; at the owner: Tang et al., DoubleSqueeze, arXiv 1905.05957.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dear_mpi.collectives.program.hosts import served, servers
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import compute_dtype
from dear_mpi.kernels.slab import round_up
from dear_mpi.training.routes.route import ROW_BYTES, Payload
from dear_mpi.training.routes.stages import Act, BucketMemory, Memory, Shape, Stage


class Wire(Protocol):
    """Encode a flat shard in ``nbytes`` bytes that do not add up. An infinity or NaN must survive decoding."""

    def nbytes(self, count: int) -> int: ...
    def encode(self, x: Array, out: Array) -> None: ...
    def decode(self, codes: Array, x: Array) -> None: ...


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

    def payload_bytes(
        self, count: int, *, longest: int, itemsize: int, ranks: int, shapes: tuple[Shape, ...] = ()
    ) -> int:
        return ranks * round_up(self.wire.nbytes(longest), ROW_BYTES)

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
