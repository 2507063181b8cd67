from dataclasses import dataclass
from typing import ClassVar

from dear_mpi.training.routes import Pack, Route, Stage, Unpack, Update, all_gather, reduce_scatter


@dataclass(frozen=True, kw_only=True)
class Squash(Stage):
    """g becomes g / (1 + |g| / limit): a small one hardly changes, and none is larger than the limit."""

    limit: float
    reads: ClassVar[tuple[str, ...]] = ("gradients",)
    writes: ClassVar[tuple[str, ...]] = ("gradients",)

    def prove(self, memory):
        for rank, shard in memory.places:
            before = memory.read("gradients", rank, shard)
            memory.write("gradients", rank, shard, memory.symbol("code", before))

    def bind(self, bucket):
        gradients = bucket.buffer("gradients")

        def squash(factor):
            gradients[...] /= 1 + abs(gradients) / self.limit

        return squash

    def __str__(self):
        return f"squash gradients to {self.limit:g}"


squash = Route(
    "squash",
    out=(Pack(), Squash(limit=0.1), reduce_scatter("gradients")),
    back=(Update(shard=True), all_gather("values"), Unpack()),
)
