"""Define the stages of a route: their meaning for the proof (``prove``) and their effect on memory (``bind``).

Flat buffers of a bucket: ``layers`` (the layers' own gradients and values), ``gradients`` (in the type that travels),
``values``, ``state``, and those that a route declares.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

from dear_mpi.collectives.plans.tuning import rules_of, serves
from dear_mpi.collectives.program.hosts import INSIDE, by_host, servers

Shape: TypeAlias = tuple[int, ...]
BucketMemory: TypeAlias = Any  # ``BoundBucket``
Act: TypeAlias = Callable[[float], object]  # the argument is the gradient factor
Symbol: TypeAlias = int  # index into a memory's table
Weights: TypeAlias = Mapping[tuple[int, int], Fraction]  # of gradients, by iteration and rank
UNKNOWN = (-1, -1)  # key in weights
MAIN = "main"  # the thread that computes
ENGINE = "engine"  # the thread that communicates


class Memory:
    """Hold the memory of all ranks in symbols, one per rank, buffer and shard; equal symbols are computed alike.

        value s, state s                initial value and state of shard s
        gradient t r s                  gradient of rank r in iteration t
        sum a b ..., average a b ...    over ranks, in rank order
        new n g v z, kept n g v z       value v after an update by n times gradient g with state z; the new state
        code a ..., lost c              a rounded value; the error of its code
        way v a, outer a w m            distance of values from an anchor; the anchor after an outer update
        mixed v a                       half of each
        leaf g i n, row a b ...         micro-batch i, one of n of gradient g; sums of a rank's subtrees
        partial n                       a partial sum or unwritten value, in the n-th place without a symbol

    Args:
        hosts: host number of each rank.
        buffers: kinds of a route's buffers, see ``Stage``.
        assumed: whether codes fit.

    Attributes:
        fits: ``assumed`` after this iteration's check, None before.
        misread: buffer, rank and shard of each partial value read.
        common: whether all updates used gradients equal on all ranks.
    """

    def __init__(self, hosts: Sequence[int], buffers: Mapping[str, str], *, assumed: bool = True) -> None:
        self.hosts, self.size, self.iteration, self.places_lost = hosts, len(hosts), 0, 0
        self.fits: bool | None = None
        self.assumed, self.common = assumed, True
        self.misread: list[tuple[str, int, int]] = []
        self.table: dict[tuple[object, ...], Symbol] = {}
        self.made: list[tuple[Any, ...]] = []  # kind and parts of each symbol
        self.weighed: list[Weights] = []
        self.held: dict[tuple[str, int, int], Symbol] = {}
        starts = {"values": "value", "layers": "value", "state": "state"}
        starts |= {
            buffer: "value" if kind == "values" else "zero" for buffer, kind in buffers.items() if kind != "scratch"
        }
        for buffer, kind in starts.items():
            for rank, shard in self.places:
                self.held[buffer, rank, shard] = self.symbol(kind, *([] if kind == "zero" else [shard]))

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        return ((rank, shard) for rank in range(self.size) for shard in range(self.size))

    def groups(self, level: str) -> Iterator[tuple[int, Sequence[int], int]]:
        """Yield each shard, the ranks in one collective of it, and their sum's keeper."""
        for shard in range(self.size):
            serving = servers(shard, self.hosts if level else range(self.size))
            if level == INSIDE:
                yield from ((shard, *each) for each in zip(by_host(self.hosts), serving, strict=True))
            else:
                yield shard, serving, shard

    def symbol(self, kind: str, *parts: int) -> Symbol:
        key = (kind, *parts)
        if key not in self.table:
            self.table[key] = len(self.table)
            self.made.append(key)
            self.weighed.append(self.weights(kind, *parts))
        return self.table[key]

    def weights(self, kind: str, *parts: int) -> Weights:
        one, scales = Fraction(1), defaultdict[Symbol, Fraction](Fraction)
        match kind, parts:
            case "gradient", (iteration, rank, _):
                return {(iteration, rank): one}
            case "partial", _:
                return {UNKNOWN: one}
            case (("sum" | "average" | "row"), _):
                for part in parts:
                    scales[part] += Fraction(1, len(parts) if kind == "average" else 1)
            case "leaf", (gradient, _, count):
                scales[gradient] = Fraction(1, count)
            case "code", (first, *_):
                scales[first] = one
            case "way", (value, anchor):
                scales[value] += one
                scales[anchor] -= one
            case (("outer" | "mixed"), (first, second, *_)):
                scales |= dict.fromkeys((first, second), Fraction(1, 1 if kind == "outer" else 2))
            case "new", (scale, gradient, value, _):
                scales |= {value: one, gradient: Fraction(scale)}
        found = defaultdict[tuple[int, int], Fraction](Fraction)
        for part, share in scales.items():
            for key, weight in self.weighed[part].items():
                found[key] += share * weight
        return found

    def read(self, buffer: str, rank: int, shard: int) -> Symbol:
        if (buffer, rank, shard) not in self.held:
            self.forget(buffer, rank, shard)
        found = self.held[buffer, rank, shard]
        if self.made[found][0] == "partial":
            self.misread.append((buffer, rank, shard))
        return found

    def write(self, buffer: str, rank: int, shard: int, symbol: Symbol) -> None:
        self.held[buffer, rank, shard] = symbol

    def compute(self, kind: str, reads: Sequence[str], write: str) -> None:
        """Write a symbol built from buffers, place by place; "" copies the only buffer."""
        for rank, shard in self.places:
            parts = [self.read(buffer, rank, shard) for buffer in reads]
            self.write(write, rank, shard, self.symbol(kind, *parts) if kind else parts[0])

    def forget(self, buffer: str, rank: int, shard: int) -> None:
        self.places_lost += 1
        self.held[buffer, rank, shard] = self.symbol("partial", self.places_lost)


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
