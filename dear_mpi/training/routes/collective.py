"""The legs that communicate: a collective of the elements of a line."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dear_mpi.collectives.plans.tuning import rules_of, serves
from dear_mpi.training.routes.legs import BucketMemory, Leg
from dear_mpi.training.routes.memory import Memory

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
