"""The acts of a route. A leg is an act on named lines: it says what it reads and writes, and on which thread.

Each has its meaning for the proof (``prove``), and what it does to a bucket's memory (``bind``). Collectives are
carried out by plans instead.

    layers          the layers' own gradients and values, which may lie outside of the line
    gradients       gradients in the form in which they travel
    values, state   parameters, and what the optimiser keeps for them
    others          as a route declares them
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from dear_mpi.kernels.array import Array
from dear_mpi.training.routes.memory import Memory

MAIN, ENGINE = "main", "engine"  # the main thread, and the engine's


class BucketMemory(Protocol):
    """A bucket's memory, see ``BoundBucket``; ``rank`` is one of ``ranks``."""

    rank: int
    ranks: int

    def pack(self) -> None: ...
    def update_own(self, factor: float) -> None: ...
    def updated(self) -> None: ...
    def line(self, name: str) -> Array: ...
    def rows(self, codes: str) -> Array: ...


@dataclass(frozen=True, kw_only=True)
class Leg(ABC):
    """An act.

    Attributes:
        on: the thread, ``main`` or ``engine``.
        every: it is done in every so many-th iteration.
        reads, writes: names of lines.
    """

    on: str = ENGINE
    every: int = 1

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]: ...

    @property
    @abstractmethod
    def writes(self) -> tuple[str, ...]: ...

    @property
    def label(self) -> str:
        """What the log calls it."""
        return str(self)

    @abstractmethod
    def prove(self, memory: Memory) -> None:
        """Do it to the symbols in the memory of all ranks."""

    @abstractmethod
    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        """What does it to a bucket's memory; it is called with the factor of the gradients."""

    def __str__(self) -> str:
        return type(self).__name__.lower()

    def is_due(self, iteration: int) -> bool:
        """Whether it is done in an iteration, counted from 0."""
        return (iteration + 1) % self.every == 0


@dataclass(frozen=True, kw_only=True)
class Pack(Leg):
    """Bring the layers' gradients onto the line, in the type that travels."""

    on: str = MAIN
    reads: ClassVar[tuple[str, ...]] = ("layers",)
    writes: ClassVar[tuple[str, ...]] = ("gradients",)

    def prove(self, memory: Memory) -> None:
        for rank, shard in memory.places:
            memory.write("gradients", rank, shard, memory.symbol("gradient", memory.iteration, rank, shard))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        return lambda factor: bucket.pack()


@dataclass(frozen=True, kw_only=True)
class Unpack(Leg):
    """Bring the values to layers whose parameters lie outside of the line."""

    on: str = MAIN
    reads: ClassVar[tuple[str, ...]] = ("values",)
    writes: ClassVar[tuple[str, ...]] = ("layers",)

    def prove(self, memory: Memory) -> None:
        for rank, shard in memory.places:
            memory.write("layers", rank, shard, memory.read("values", rank, shard))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        return lambda factor: bucket.updated()


@dataclass(frozen=True, kw_only=True)
class Update(Leg):
    """Let the optimiser make values new.

    Attributes:
        shard: whether of this rank's shard alone.
        alone: whether by the gradients of this rank alone, which then count as if they were the sum over ranks.
    """

    shard: bool = False
    alone: bool = False
    reads: ClassVar[tuple[str, ...]] = ("gradients", "values", "state")
    writes: ClassVar[tuple[str, ...]] = ("values", "state")

    @property
    def label(self) -> str:
        return "update"

    def prove(self, memory: Memory) -> None:
        scale = memory.size if self.alone else 1
        for rank, shard in memory.places:
            if rank == shard or not self.shard:
                by = [memory.read(line, rank, shard) for line in self.reads]
                memory.write("values", rank, shard, memory.symbol("new", scale, *by))
                memory.write("state", rank, shard, memory.symbol("kept", scale, *by))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        scale = bucket.ranks if self.alone else 1
        return lambda factor: bucket.update_own(factor * scale)

    def __str__(self) -> str:
        what = "the own shard" if self.shard else "all"
        return f"update {what}{' by own gradients' * self.alone}"


@dataclass(frozen=True, kw_only=True)
class Collective(Leg):
    """A collective of the elements of a line.

    Attributes:
        name: ``reduce_scatter``, ``all_gather`` or ``all_reduce``.
        op: of what reduces: ``sum`` or ``average``.
        few: whether it sends so few bytes that all of them cost nothing.
        called: in logs and errors, if not by its name.
    """

    name: str
    line: str
    op: str = "sum"
    few: bool = False
    called: str = ""

    @property
    def label(self) -> str:
        return self.called or self.name

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.line,)

    writes = reads

    @property
    def options(self) -> dict[str, Any]:
        """Of its plan, where they are not as usual."""
        few = {"algorithm": "auto"} if self.few else {}
        return few if self.op == "sum" else {"op": self.op, **few}

    def prove(self, memory: Memory) -> None:
        ranks = range(memory.size)
        if self.name != "all_gather":
            for shard in ranks:
                parts = [memory.read(self.line, rank, shard) for rank in ranks]
                for rank in ranks:
                    memory.forget(self.line, rank, shard)
                memory.write(self.line, shard, shard, memory.symbol(self.op, *parts))
        if self.name != "reduce_scatter":
            for rank, shard in memory.places:
                memory.write(self.line, rank, shard, memory.read(self.line, shard, shard))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        raise TypeError("a collective is carried out by a plan")

    def __str__(self) -> str:
        return f"{self.name} {self.line}{' (average)' * (self.op == 'average')}"


def reduce_scatter(line: str, *, op: str = "sum", every: int = 1, on: str = ENGINE) -> Collective:
    """Each rank gets the sum over ranks of its shard; its other shards are partial then."""
    return Collective(name="reduce_scatter", line=line, op=op, every=every, on=on)


def all_gather(line: str, *, every: int = 1, on: str = ENGINE) -> Collective:
    """All ranks get each rank's shard."""
    return Collective(name="all_gather", line=line, every=every, on=on)


def all_reduce(line: str, *, op: str = "sum", every: int = 1, on: str = ENGINE) -> Collective:
    """All ranks get the sum over ranks."""
    return Collective(name="all_reduce", line=line, op=op, every=every, on=on)
