"""Define the stages of a route: their meaning for the proof (``prove``) and their effect on memory (``bind``).

Flat buffers of a bucket: ``layers`` (the layers' own gradients and values), ``gradients`` (in the type that travels),
``values``, ``state``, and those that a route declares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from dear_mpi.collectives.plans.tuning import rules_of, serves
from dear_mpi.collectives.program.hosts import NEXT

if TYPE_CHECKING:
    from dear_mpi.training.routes.proof import Memory

Shape: TypeAlias = tuple[int, ...]
BucketMemory: TypeAlias = Any  # ``BoundBucket``
Act: TypeAlias = Callable[[float], object]  # the argument is the gradient factor
MAIN = "main"  # the thread that computes
ENGINE = "engine"  # the thread that communicates


@dataclass(frozen=True, kw_only=True)
class Stage(ABC):
    """Describe one stage.

    Attributes:
        on: the thread, ``main`` or ``engine``.
        every: run in the last of every ``every`` iterations.
        first, until: run from ``first`` on, and before ``until`` if given, counted from 0.
        after: run this many iterations later.
        fits: run only if an earlier stage found that codes fit (True) or not (False), equally on all ranks.
        level: ``inside hosts`` or ``between hosts`` (``collectives/program/hosts.py``); "" for all ranks.
        reads, writes: names of buffers.
        buffers: extra buffers by kind: ``own`` (differs by rank), ``equal``, initial ``values``, ``scratch``.
        timed: whether the log times it on the main thread.
        whole: whether buckets must consist of whole tensors.
    """

    on: str = ENGINE
    every: int = 1
    after: int = 0
    first: int = 0
    until: int | None = None
    fits: bool | None = None
    level: str = ""
    buffers: ClassVar[Mapping[str, str]] = {}
    timed: ClassVar[bool] = False
    whole: ClassVar[bool] = False

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]: ...

    @property
    @abstractmethod
    def writes(self) -> tuple[str, ...]: ...

    @property
    def label(self) -> str:
        return str(self)

    def compute_s(self, count: int, ranks: int) -> float:
        """Estimate the seconds for ``count`` elements, for predictions."""
        return 0.0

    def served_s(self, count: int, ranks: int, share: float) -> float:
        """Estimate the seconds if a rank serves ``share`` of a bucket between hosts (``share_served``)."""
        share = share if self.level else 1.0
        return self.compute_s(round(share * count), round(share * ranks))

    def has_use(self, shapes: Sequence[Shape]) -> bool:
        return True

    def objection(self, ranks: int) -> str:
        """Explain why the stage cannot run on ``ranks`` ranks; "" if it can."""
        return ""

    @property
    def share(self) -> float:
        """Return the long-run share of iterations that run this stage, if codes fit."""
        return 1 / self.every if self.until is None and self.fits is not False else 0.0

    @abstractmethod
    def prove(self, memory: Memory) -> None:
        """Apply the stage to the symbols of all ranks."""

    @abstractmethod
    def bind(self, bucket: BucketMemory) -> Act:
        """Return the call that applies the stage to a bucket."""

    def __str__(self) -> str:
        return type(self).__name__.lower()

    def is_due(self, iteration: int) -> bool:
        then = iteration - self.after
        within = self.first <= then and (self.until is None or then < self.until)
        return within and (then + 1) % self.every == 0


@dataclass(frozen=True, kw_only=True)
class Pack(Stage):
    on: str = MAIN
    reads = ("layers",)
    writes = ("gradients",)

    def prove(self, memory: Memory) -> None:
        for rank, shard in memory.places:
            memory.write("gradients", rank, shard, memory.symbol("gradient", memory.iteration, rank, shard))

    def bind(self, bucket: BucketMemory) -> Act:
        return lambda factor: bucket.pack()


@dataclass(frozen=True, kw_only=True)
class Unpack(Stage):
    """Copy values to layers with parameters elsewhere."""

    on: str = MAIN
    reads = ("values",)
    writes = ("layers",)

    def prove(self, memory: Memory) -> None:
        memory.compute("", ("values",), "layers")

    def bind(self, bucket: BucketMemory) -> Act:
        return lambda factor: bucket.updated()


@dataclass(frozen=True, kw_only=True)
class Update(Stage):  # plain-ok: ``alone`` is an attribute
    """Apply the optimiser to the values: of this rank's ``shard`` only, or all.

    ``alone``: use only this rank's gradients, scaled as if they were the sum over ranks.
    """

    shard: bool = False
    alone: bool = False
    timed: ClassVar[bool] = True
    reads = ("gradients", "values", "state")
    writes = ("values", "state")
    label = "update"

    def elements(self, whole: float, own: Any) -> Any:
        return own if self.shard else whole

    def prove(self, memory: Memory) -> None:
        scale, by_shard = memory.size if self.alone else 1, dict[int, int]()
        for rank, shard in memory.places:
            if rank == shard or not self.shard:
                by = [memory.read(buffer, rank, shard) for buffer in self.reads]
                memory.common &= by[0] == by_shard.setdefault(shard, by[0])
                memory.write("values", rank, shard, memory.symbol("new", scale, *by))
                memory.write("state", rank, shard, memory.symbol("kept", scale, *by))

    def bind(self, bucket: BucketMemory) -> Act:
        scale = bucket.ranks if self.alone else 1
        return lambda factor: bucket.update_own(factor * scale)

    def __str__(self) -> str:
        what = "the own shard" if self.shard else "all"
        return f"update {what}{' by own gradients' * self.alone}"


class Look(Stage):
    """Pass this rank's shard of the sums to any gradient statistics, at the end of the way out."""

    reads = ("gradients",)
    writes = ()
    label = "statistics"

    def prove(self, memory: Memory) -> None:
        """Change nothing."""

    def bind(self, bucket: BucketMemory) -> Act:
        return lambda factor: bucket.look(bucket.shard("gradients", bucket.rank))


LOOK = Look()
PAIRWISE = "pairwise"  # for an all_to_all, if the chosen algorithm has none


@dataclass(frozen=True, kw_only=True)
class Collective(Stage):
    """Run a collective on a buffer.

    Attributes:
        name: ``reduce_scatter``, ``all_gather``, ``all_reduce``; for codes ``all_to_all`` or ``all_gather``.
        op: ``sum`` or ``average``.
        few: its bytes cost nothing.
        called: its name in logs and errors, if not ``name``.
    """

    name: str
    buffer: str
    op: str = "sum"
    few: bool = False
    called: str = ""

    @property
    def label(self) -> str:
        return self.called or self.name

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.buffer,)

    writes = reads

    def options(self, algorithm: str) -> dict[str, Any]:
        return {"algorithm": self.algorithm(algorithm)} | ({} if self.op == "sum" else {"op": self.op})

    def algorithm(self, chosen: str) -> str:
        """Select the algorithm to run: most reducing algorithms have no exchange."""
        if self.few:
            return "auto"
        if self.level:
            return self.level
        exchange = self.name == "all_to_all" and (rules_of(chosen) is not None or not serves(chosen, self.name))
        return PAIRWISE if exchange else chosen

    def prove(self, memory: Memory) -> None:
        groups = list(memory.groups(self.level))
        if self.name == "all_to_all":
            sent = {
                (shard, rank): memory.read(self.buffer, rank, shard) for shard, ranks, _ in groups for rank in ranks
            }
            for (shard, rank), symbol in sent.items():
                memory.write(self.buffer, shard, rank, symbol)
            return
        for shard, ranks, keeper in groups if self.name != "all_gather" else ():
            parts = [memory.read(self.buffer, rank, shard) for rank in ranks]
            for rank in ranks:
                memory.forget(self.buffer, rank, shard)
            memory.write(self.buffer, keeper, shard, memory.symbol(self.op, *parts))
        for shard, ranks, keeper in groups if self.name != "reduce_scatter" else ():
            for rank in ranks:
                memory.write(self.buffer, rank, shard, memory.read(self.buffer, keeper, shard))

    def bind(self, bucket: BucketMemory) -> Act:
        raise TypeError("a collective is carried out by a plan")

    def __str__(self) -> str:
        return f"{self.name} {self.buffer}{f' {self.level}' * bool(self.level)}{' (average)' * (self.op == 'average')}"


@dataclass(frozen=True, kw_only=True)
class CopyState(Stage):  # plain-ok: the optimiser's
    """Send the new optimiser state of this rank's shard to the next rank, which keeps it (``kept.py``)."""

    name: ClassVar[str] = "all_gather"  # whose first step it is, for prices
    buffer: ClassVar[str] = "state"
    few: ClassVar[bool] = False
    reads = ("state",)
    writes = ()

    def options(self, algorithm: str) -> dict[str, Any]:
        return {"algorithm": self.algorithm(algorithm)}

    def algorithm(self, chosen: str) -> str:
        return NEXT

    def prove(self, memory: Memory) -> None:
        for rank in range(memory.size):
            memory.read("state", rank, rank)

    def bind(self, bucket: BucketMemory) -> Act:
        return lambda factor: bucket.copy_state()

    def __str__(self) -> str:
        return "copy state to the next rank"


Sent: TypeAlias = Collective | CopyState


def reduce_scatter(buffer: str, **how: Any) -> Collective:
    """Give each rank the sum or average of its shard; its other shards become partial."""
    return Collective(name="reduce_scatter", buffer=buffer, **how)


def all_gather(buffer: str, **how: Any) -> Collective:
    """Give all ranks each rank's shard."""
    return Collective(name="all_gather", buffer=buffer, **how)


def all_to_all(codes: str, **how: Any) -> Collective:
    """Give each rank all ranks' codes for its shard."""
    return Collective(name="all_to_all", buffer=codes, **how)


def all_reduce(buffer: str, **how: Any) -> Collective:
    """Give all ranks the sum or average of all shards."""
    return Collective(name="all_reduce", buffer=buffer, **how)
