"""TAMUNA: local steps with control variates; each client sends only some coordinates of its model.

    each iteration   values -= gamma g, values += control                        by own gradients
    each round       c of n ranks take part; for each coordinate, s of these send their values to its owner, who takes
                     the mean; all ranks get all means
                     control += eta (mean - values), where this rank sent; then values = mean

``control`` is gamma h_i of the paper; its sum over ranks stays 0. A round has 1 / p local steps, the mean of the
paper's. Source: Condat et al., arXiv 2302.09832, algorithm 1; with all ranks CompressedScaffnew, arXiv 2210.13277.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.slab import round_up
from dear_mpi.training.routes import (
    MAIN,
    ROW_BYTES,
    BucketMemory,
    Memory,
    Pack,
    Payload,
    Route,
    Sizes,
    Stage,
    Unpack,
    Update,
    all_gather,
    all_to_all,
)


@dataclass(frozen=True)
class Masks:
    """Draw who sends what for each round, equally on all ranks.

    Attributes:
        steps: local steps of a round.
        senders: s, the ranks of each coordinate's mean, at least two.
        clients: c, the ranks of a round; default: all.
    """

    steps: int
    senders: int
    clients: int | None = None
    seed: int = 0

    def taking_part(self, ranks: int) -> int:
        return ranks if self.clients is None else self.clients

    def places(self, count: int, ranks: int, update: int, where: tuple[int, ...]) -> list[Array]:
        """Return each rank's coordinates of a shard (``where``), ascending.

        Coordinate k of a permutation is of the clients k s, k s + 1, ..., k s + s - 1, modulo c.
        """
        clients, number = self.taking_part(ranks), update // self.steps
        who = np.random.default_rng([self.seed, number]).permutation(ranks)[:clients]
        columns = np.random.default_rng([self.seed, number, *where]).permutation(count)
        found: list[Array] = [np.empty(0, int)] * ranks
        for client, rank in enumerate(who):
            found[rank] = np.flatnonzero((client - columns * self.senders) % clients < self.senders)
        return found

    def eta(self, ranks: int) -> float:
        """Return by how much of its way to the mean a control variate moves."""
        return ranks * (self.senders - 1) / (self.steps * self.senders * (ranks - 1))


@dataclass(frozen=True, kw_only=True)
class OfMasks(Payload):
    """Act on a buffer that has, for each shard, a row of the values that one rank sends."""

    wire: Masks
    codes: str = "sent"

    def payload_bytes(self, of: Sizes) -> int:
        kept = -(-of.longest * self.wire.senders // self.wire.taking_part(of.ranks))
        return of.ranks * round_up(of.itemsize * kept, ROW_BYTES)

    def objection(self, ranks: int) -> str:
        senders, clients = self.wire.senders, self.wire.taking_part(ranks)
        fits = 2 <= senders <= clients <= ranks
        return "" if fits else f"2 <= senders <= clients <= ranks must be, not {senders} of {clients} clients"

    def rows(self, bucket: BucketMemory) -> Array:
        rows: Array = bucket.rows(self.codes).view(bucket.buffer("gradients").dtype)
        return rows

    def places(self, bucket: BucketMemory, shard: int) -> list[Array]:
        count = bucket.shard("values", shard).size
        return self.wire.places(count, bucket.ranks, bucket.own_updates - 1, (bucket.begin, shard))


@dataclass(frozen=True, kw_only=True)
class Correct(Stage):
    on: str = MAIN
    reads = ("values", "control")
    writes = ("values",)
    buffers: ClassVar[Mapping[str, str]] = {"control": "own"}

    def prove(self, memory: Memory) -> None:
        memory.compute("code", self.reads, "values")

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        values, control = map(bucket.buffer, self.reads)
        return lambda factor: np.add(values, control, out=values)


@dataclass(frozen=True, kw_only=True)
class Send(OfMasks):
    on: str = MAIN
    reads = ("values",)
    writes = ("sent",)

    def prove(self, memory: Memory) -> None:
        memory.compute("code", self.reads, "sent")

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        rows, shards = self.rows(bucket), [bucket.shard("values", shard) for shard in range(bucket.ranks)]

        def send(factor: float) -> None:
            for shard, (row, values) in enumerate(zip(rows, shards, strict=True)):
                at = self.places(bucket, shard)[bucket.rank]
                row[: at.size] = values[at]

        return send


@dataclass(frozen=True, kw_only=True)
class Mean(OfMasks):
    """Take the mean of all received values of each coordinate of the own shard.

    To the proof it is the mean over all ranks: the average over masks.
    """

    reads = ("sent",)
    writes = ("mean",)
    buffers: ClassVar[Mapping[str, str]] = {"mean": "scratch"}

    def prove(self, memory: Memory) -> None:
        for rank in range(memory.size):
            sent = [memory.read("sent", rank, other) for other in range(memory.size)]
            memory.write("mean", rank, rank, memory.symbol("average", *sent))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        rows, mean = self.rows(bucket), bucket.shard("mean", bucket.rank)

        def average(factor: float) -> None:
            mean[...] = 0
            for row, at in zip(rows, self.places(bucket, bucket.rank), strict=True):
                mean[at] += row[: at.size]
            mean[...] /= self.wire.senders

        return average


@dataclass(frozen=True, kw_only=True)
class Adopt(OfMasks):
    """control += eta (mean - what was sent), and values = mean."""

    on: str = MAIN
    reads = ("mean", "values", "control")
    writes = ("values", "control")
    buffers: ClassVar[Mapping[str, str]] = {"control": "own"}

    def prove(self, memory: Memory) -> None:
        memory.compute("lost", self.reads, "control")
        memory.compute("", ("mean",), "values")

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        eta = self.wire.eta(bucket.ranks)
        buffers = [[bucket.shard(buffer, shard) for buffer in self.reads] for shard in range(bucket.ranks)]
        wire = bucket.buffer("gradients").dtype

        def adopt(factor: float) -> None:
            for shard, (mean, values, control) in enumerate(buffers):
                at = self.places(bucket, shard)[bucket.rank]
                control[at] += eta * (mean[at] - values[at].astype(wire))
                values[...] = mean

        return adopt


def tamuna(steps: int, senders: int, clients: int | None = None, seed: int = 0) -> Route:
    alone = Pack(), Update(alone=True, on=MAIN), Correct()
    masks: dict[str, Any] = {"wire": Masks(steps, senders, clients, seed), "every": steps}
    return Route(
        "tamuna",
        out=(*alone, Send(**masks), all_to_all("sent", every=steps), Mean(**masks)),
        back=(all_gather("mean", every=steps), Adopt(**masks), Unpack()),
    )


# 8 ranks, condition number 1e4: sqrt(senders 1e4 / 8) steps.
route = tamuna(71, 4)
half = tamuna(71, 4, clients=4)
fewer = tamuna(50, 2)
