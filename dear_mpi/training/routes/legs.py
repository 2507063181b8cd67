"""Define the stages (legs) of a route: what each reads, writes and computes, and on which thread.

Each has a meaning for the proof (``prove``) and an effect on memory (``bind``). Plans carry out collectives instead.

    layers          gradients and values of the layers; may be outside the flat buffer (line)
    gradients       gradients in the type that travels
    values, state   parameters, and the optimiser state
    others          as declared by a route
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from dear_mpi.collectives.plans.tuning import rules_of, serves
from dear_mpi.kernels.array import Array
from dear_mpi.training.routes.memory import Memory

Shape = tuple[int, ...]
MAIN = "main"
"""The main thread, which computes."""
ENGINE = "engine"
"""The engine's thread, which communicates."""


class BucketMemory(Protocol):
    """Describe a bucket's memory, see ``BoundBucket``; ``rank`` is one of ``ranks``."""

    rank: int
    ranks: int
    hosts: Sequence[int]  # host number of each rank
    begin: int  # its first element in the flat buffer
    own_updates: int  # number of updates so far
    fits: bool  # result of a leg's check, see ``Leg``
    found: Any  # passed from one leg to another
    look: Any  # adds a shard of the sums to the statistics, if any

    def pack(self) -> None: ...
    def update_own(self, factor: float) -> None: ...
    def updated(self) -> None: ...
    def line(self, name: str) -> Array: ...
    def place(self, shard: int) -> slice: ...
    def shard(self, name: str, shard: int) -> Array: ...
    def rows(self, codes: str) -> Array: ...
    def tensors(self, name: str) -> list[Array]: ...
    def filled(self, shard: int) -> Array: ...
    def judge(self, *, fits: bool) -> None: ...
    def selected(self, grads: Array, places: Callable[[], Array]) -> Callable[[float], None]: ...


@dataclass(frozen=True, kw_only=True)
class Leg(ABC):
    """Describe one stage.

    Attributes:
        on: the thread, ``main`` or ``engine``.
        every: run in the last of every ``every`` iterations.
        first, until: run from ``first`` on, and before ``until`` if given, counted from 0.
        after: run this many iterations later.
        fits: run only if an earlier leg found that codes fit the gradients (True) or not (False), equally on all ranks;
            None for always.
        level: ``inside hosts`` to combine each shard within a host, ``between hosts`` to combine the hosts' sums
            (``collectives/program/hosts.py``), "" for all ranks at once.
        reads, writes: names of lines.
        lines: extra lines by kind: ``own`` (differs by rank), ``equal``, initial ``values``, ``scratch`` (not kept).
        timed: whether the log records its time on the main thread.
        whole: whether buckets must consist of whole tensors.
    """

    on: str = ENGINE
    every: int = 1
    after: int = 0
    first: int = 0
    until: int | None = None
    fits: bool | None = None
    level: str = ""
    lines: ClassVar[Mapping[str, str]] = {}
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
        """Name the leg in the log."""
        return str(self)

    def compute_s(self, count: int, ranks: int) -> float:
        """Estimate the seconds for ``count`` elements."""
        return 0.0

    def served_s(self, count: int, ranks: int, share: float) -> float:
        """Estimate the seconds if a rank serves ``share`` of a bucket between hosts (``share_served``)."""
        share = share if self.level else 1.0
        return self.compute_s(round(share * count), round(share * ranks))

    def has_use(self, shapes: Sequence[Shape]) -> bool:
        """Tell whether the leg does anything for tensors of these shapes."""
        return True

    def objection(self, ranks: int) -> str:
        """Explain why the leg cannot run on ``ranks`` ranks; "" if it can."""
        return ""

    @property
    def share(self) -> float:
        """Return the long-run share of iterations that run this leg, if codes fit."""
        return 1 / self.every if self.until is None and self.fits is not False else 0.0

    @abstractmethod
    def prove(self, memory: Memory) -> None:
        """Apply the leg to the symbols of all ranks."""

    @abstractmethod
    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        """Return the call that applies the leg to a bucket; its argument is the gradient factor."""

    def __str__(self) -> str:
        return type(self).__name__.lower()

    def is_due(self, iteration: int) -> bool:
        then = iteration - self.after
        within = self.first <= then and (self.until is None or then < self.until)
        return within and (then + 1) % self.every == 0


@dataclass(frozen=True, kw_only=True)
class Pack(Leg):
    """Copy the layers' gradients into the flat buffer, in the type that travels."""

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
    """Copy values to layers whose parameters are outside the flat buffer."""

    on: str = MAIN
    reads: ClassVar[tuple[str, ...]] = ("values",)
    writes: ClassVar[tuple[str, ...]] = ("layers",)

    def prove(self, memory: Memory) -> None:
        for rank, shard in memory.places:
            memory.write("layers", rank, shard, memory.read("values", rank, shard))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        return lambda factor: bucket.updated()


@dataclass(frozen=True, kw_only=True)
class Update(Leg):  # plain-ok: ``alone`` is an attribute
    """Apply the optimiser to the values.

    Attributes:
        shard: update only this rank's shard.
        alone: use only this rank's gradients, scaled as if they were the sum over ranks.
    """

    shard: bool = False
    alone: bool = False
    timed: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("gradients", "values", "state")
    writes: ClassVar[tuple[str, ...]] = ("values", "state")

    @property
    def label(self) -> str:
        return "update"

    def elements(self, whole: float, own: Any) -> Any:
        """Choose the updated elements: ``whole`` for a full bucket, ``own`` for each rank's shard."""
        return own if self.shard else whole

    def prove(self, memory: Memory) -> None:
        scale, by_shard = memory.size if self.alone else 1, dict[int, int]()
        for rank, shard in memory.places:
            if rank == shard or not self.shard:
                by = [memory.read(line, rank, shard) for line in self.reads]
                memory.common &= by[0] == by_shard.setdefault(shard, by[0])
                memory.write("values", rank, shard, memory.symbol("new", scale, *by))
                memory.write("state", rank, shard, memory.symbol("kept", scale, *by))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        scale = bucket.ranks if self.alone else 1
        return lambda factor: bucket.update_own(factor * scale)

    def __str__(self) -> str:
        what = "the own shard" if self.shard else "all"
        return f"update {what}{' by own gradients' * self.alone}"


@dataclass(frozen=True, kw_only=True)
class Look(Leg):
    """Pass this rank's shard of the sums to the gradient statistics."""

    reads: ClassVar[tuple[str, ...]] = ("gradients",)
    writes: ClassVar[tuple[str, ...]] = ()

    @property
    def label(self) -> str:
        return "statistics"

    def prove(self, memory: Memory) -> None:
        """Change nothing."""

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        return lambda factor: bucket.look(bucket.shard("gradients", bucket.rank))


LOOK = Look()
"""Where the way out ends; nothing is carried out unless there are statistics."""


EXCHANGE = "pairwise"  # the algorithm of an all_to_all if the chosen one has none


@dataclass(frozen=True, kw_only=True)
class Collective(Leg):
    """Run a collective on a line.

    Attributes:
        name: ``reduce_scatter``, ``all_gather``, ``all_reduce``; for codes ``all_to_all`` or ``all_gather``.
        op: the reduction, ``sum`` or ``average``.
        few: whether its bytes cost nothing.
        called: its name in logs and errors, if not ``name``.
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

    def options(self, algorithm: str) -> dict[str, Any]:
        return {"algorithm": self.algorithm(algorithm)} | ({} if self.op == "sum" else {"op": self.op})

    def algorithm(self, chosen: str) -> str:
        """Select the algorithm to run: most reducing algorithms have no exchange."""
        if self.few:
            return "auto"
        if self.level:
            return self.level
        exchange = self.name == "all_to_all" and (rules_of(chosen) is not None or not serves(chosen, self.name))
        return EXCHANGE if exchange else chosen

    def prove(self, memory: Memory) -> None:
        groups = list(memory.groups(self.level))
        if self.name == "all_to_all":
            sent = {(shard, rank): memory.read(self.line, rank, shard) for shard, ranks, _ in groups for rank in ranks}
            for (shard, rank), symbol in sent.items():
                memory.write(self.line, shard, rank, symbol)
            return
        for shard, ranks, keeper in groups if self.name != "all_gather" else ():
            parts = [memory.read(self.line, rank, shard) for rank in ranks]
            for rank in ranks:
                memory.forget(self.line, rank, shard)
            memory.write(self.line, keeper, shard, memory.symbol(self.op, *parts))
        for shard, ranks, keeper in groups if self.name != "reduce_scatter" else ():
            for rank in ranks:
                memory.write(self.line, rank, shard, memory.read(self.line, keeper, shard))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        raise TypeError("a collective is carried out by a plan")

    def __str__(self) -> str:
        return f"{self.name} {self.line}{f' {self.level}' * bool(self.level)}{' (average)' * (self.op == 'average')}"


def reduce_scatter(line: str, **how: Any) -> Collective:
    """Give each rank the sum or average of its shard; its other shards become partial."""
    return Collective(name="reduce_scatter", line=line, **how)


def all_gather(line: str, **how: Any) -> Collective:
    return Collective(name="all_gather", line=line, **how)


def all_to_all(codes: str, **how: Any) -> Collective:
    """Give each rank all ranks' codes for its shard."""
    return Collective(name="all_to_all", line=codes, **how)


def all_reduce(line: str, **how: Any) -> Collective:
    return Collective(name="all_reduce", line=line, **how)
