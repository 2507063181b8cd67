"""Legs of codes: forms in which elements travel that do not add up. Each rank sends its own, and all decode all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from dear_mpi.kernels.array import Array
from dear_mpi.training.routes.legs import BucketMemory, Leg
from dear_mpi.training.routes.memory import Memory


class Wire(Protocol):
    """A form in which elements travel that does not add up: codes.

    ``out`` and ``codes`` are bytes, ``nbytes`` of them; ``x`` is a part of a line. Where x has what is infinite or no
    number, so must what is decoded: otherwise nobody hears of it.
    """

    def nbytes(self, count: int) -> int: ...
    def encode(self, x: Array, out: Array) -> None: ...
    def decode(self, codes: Array, x: Array) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Encode(Leg):
    """Write this rank's codes of its gradients into its own row.

    Attributes:
        wire: what encodes.
        codes: the line of codes, a row for each rank.
        error: a line that keeps what the code has lost, and adds it to the gradients of the next time; or none.
    """

    wire: Wire
    codes: str
    error: str | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        return ("gradients", self.error) if self.error else ("gradients",)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.codes, *self.reads[1:])

    def prove(self, memory: Memory) -> None:
        for rank in range(memory.size):
            parts = [[memory.read(line, rank, shard) for shard in range(memory.size)] for line in self.reads]
            row = [memory.symbol("code", *each) for each in zip(*parts, strict=True)]
            memory.write(self.codes, rank, rank, memory.symbol("row", *row))
            for line in self.reads[1:]:
                for shard, part in enumerate(row):
                    memory.write(line, rank, shard, memory.symbol("lost", part))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        gradients, row = bucket.line("gradients"), bucket.rows(self.codes)[bucket.rank]
        if self.error is None:
            return lambda factor: self.wire.encode(gradients, row)
        error, again = bucket.line(self.error), gradients.copy()

        def encode(factor: float) -> None:
            error[...] += gradients
            self.wire.encode(error, row)
            self.wire.decode(row, again)
            error[...] -= again

        return encode

    def __str__(self) -> str:
        return f"encode gradients to {self.codes}{f', with {self.error}' if self.error else ''}"


@dataclass(frozen=True, kw_only=True)
class Decode(Leg):
    """Add up the decoded rows of all ranks, in the order of ranks; see ``Encode``."""

    wire: Wire
    codes: str

    writes: ClassVar[tuple[str, ...]] = ("gradients",)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.codes,)

    def prove(self, memory: Memory) -> None:
        for rank in range(memory.size):
            rows = [memory.row(self.codes, rank, row) for row in range(memory.size)]
            for shard, parts in enumerate(zip(*rows, strict=True)):
                memory.write("gradients", rank, shard, memory.symbol("sum", *parts))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        gradients, rows = bucket.line("gradients"), bucket.rows(self.codes)
        part = gradients.copy()

        def decode(factor: float) -> None:
            gradients[...] = 0
            for row in rows:
                self.wire.decode(row, part)
                gradients[...] += part

        return decode

    def __str__(self) -> str:
        return f"decode {self.codes}, add up"
