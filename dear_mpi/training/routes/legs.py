"""The acts of a route. A leg is an act on named lines: it says what it reads and writes, and on which thread.

Each has its meaning for the proof (``prove``), and what it does to a bucket's memory (``bind``). Collectives are
carried out by plans instead.

    layers          the layers' own gradients and values, which may lie outside of the line
    gradients       gradients in the form in which they travel
    values, state   parameters, and what the optimiser keeps for them
    others          as a route declares them
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
    """A bucket's memory, see ``BoundBucket``; ``rank`` is one of ``ranks``."""

    rank: int
    ranks: int
    hosts: Sequence[int]  # of each rank the number of its host
    begin: int  # its first element on the line
    own_updates: int  # how many it has been through
    fits: bool  # what a leg has found, see ``Leg``
    found: Any  # what one leg has found for another
    look: Any  # takes a shard of the sums into the statistics, if there are any

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
    """An act.

    Attributes:
        on: the thread, ``main`` or ``engine``.
        every: of each so many iterations it belongs to the last one;
        first, until: of these, to those from number ``first`` on, and before ``until`` if given, counted from 0;
        after: it is done so many iterations later.
        fits: whether only where an earlier leg has found that codes fit the gradients, or only where they do not; None
            for always. What is found is the same on all ranks.
        level: ``inside hosts``, where ranks bring together what their host has of each shard; ``between hosts``, where
            they do it with what hosts have (``collectives/program/hosts.py``); or "", all ranks at once.
        reads, writes: names of lines.
        lines: what it needs of its own, and what these are: each rank's ``own``, ``equal`` on all ranks, or ``values``
            at first; what is ``scratch`` is not kept.
        timed: whether the log has when the main thread did it.
        whole: whether buckets must have whole tensors.
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
        """What the log calls it."""
        return str(self)

    def compute_s(self, count: int, ranks: int) -> float:
        """Seconds that it computes for a bucket of so many elements, as far as it can be said in advance."""
        return 0.0

    def served_s(self, count: int, ranks: int, share: float) -> float:
        """The same, where a rank serves at most this share of a bucket between hosts (``share_served``)."""
        share = share if self.level else 1.0
        return self.compute_s(round(share * count), round(share * ranks))

    def has_use(self, shapes: Sequence[Shape]) -> bool:
        """Whether there is something to do for it in a model with tensors of these shapes."""
        return True

    def objection(self, ranks: int) -> str:
        """Why it cannot be done on so many ranks; "" if it can."""
        return ""

    @property
    def share(self) -> float:
        """In which share of iterations it is done, when training has gone on for long, and codes fit."""
        return 1 / self.every if self.until is None and self.fits is not False else 0.0

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
        then = iteration - self.after
        within = self.first <= then and (self.until is None or then < self.until)
        return within and (then + 1) % self.every == 0


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
    timed: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("gradients", "values", "state")
    writes: ClassVar[tuple[str, ...]] = ("values", "state")

    @property
    def label(self) -> str:
        return "update"

    def elements(self, whole: float, own: Any) -> Any:
        """How many elements it updates, if these are all of a bucket, and those of each rank's shard."""
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
    """Let the statistics of all gradients see this rank's shard of the sums."""

    reads: ClassVar[tuple[str, ...]] = ("gradients",)
    writes: ClassVar[tuple[str, ...]] = ()

    @property
    def label(self) -> str:
        return "statistics"

    def prove(self, memory: Memory) -> None:
        """It changes nothing."""

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        return lambda factor: bucket.look(bucket.shard("gradients", bucket.rank))


LOOK = Look()
"""Where the way out ends; nothing is carried out unless there are statistics."""


EXCHANGE = "pairwise"  # the algorithm of an all_to_all, where the chosen one has none


@dataclass(frozen=True, kw_only=True)
class Collective(Leg):
    """A collective of the elements of a line.

    Attributes:
        name: ``reduce_scatter``, ``all_gather`` or ``all_reduce``; of codes, ``all_to_all`` or ``all_gather``.
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

    def options(self, algorithm: str) -> dict[str, Any]:
        """Of its plan, where this algorithm was chosen."""
        return {"algorithm": self.algorithm(algorithm)} | ({} if self.op == "sum" else {"op": self.op})

    def algorithm(self, chosen: str) -> str:
        """What carries it out: most algorithms that reduce have no exchange."""
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
    """Each rank gets the sum over ranks of its shard, or the average; its other shards are partial then."""
    return Collective(name="reduce_scatter", line=line, **how)


def all_gather(line: str, **how: Any) -> Collective:
    """All ranks get each rank's shard."""
    return Collective(name="all_gather", line=line, **how)


def all_to_all(codes: str, **how: Any) -> Collective:
    """Each rank gets all ranks' codes of its own shard."""
    return Collective(name="all_to_all", line=codes, **how)


def all_reduce(line: str, **how: Any) -> Collective:
    """All ranks get the sum over ranks, or the average."""
    return Collective(name="all_reduce", line=line, **how)
