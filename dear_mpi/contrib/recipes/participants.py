"""Some of the ranks take part in a round, drawn by a seed or the fastest ones; all take their average.

    each iteration   values -= lr gradient       without others; ranks without a part take the step on one example
    each round       values *= n / c, or 0 where a rank takes no part | average over n ranks | all have the mean of c

mpirun -n 8 python -m dear_mpi.contrib.recipes.participants

Source: McMahan et al., FedAvg, AISTATS 2017, algorithm 1 (random clients); arXiv 2112.05559 (devices by speed).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.models.data import load_data
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.models.networks import mlp
from dear_mpi.training import SGD, Session, run_world
from dear_mpi.training.routes import (
    MAIN,
    BucketMemory,
    Memory,
    Pack,
    Route,
    Stage,
    Unpack,
    Update,
    all_gather,
    reduce_scatter,
)


@dataclass(frozen=True)
class Participants:
    """Choose a round's ranks, equally on all ranks.

    Attributes:
        count: how many.
        seconds: an iteration of each rank: the fastest take part; default: a draw.
    """

    count: int
    seconds: tuple[float, ...] = ()
    seed: int = 0

    def of(self, number: int, ranks: int) -> set[int]:
        drawn = np.random.default_rng([self.seed, number]).permutation(ranks)
        order = np.argsort(self.seconds, kind="stable") if self.seconds else drawn
        return {int(rank) for rank in order[: self.count]}

    def objection(self, ranks: int) -> str:
        if not 1 <= self.count <= ranks:
            return f"participants must be from 1 to the number of ranks, {ranks}, not {self.count}"
        if self.seconds and len(self.seconds) != ranks:
            return f"seconds must be a number for each of {ranks} ranks, not {len(self.seconds)} numbers"
        return ""


@dataclass(frozen=True, kw_only=True)
class TakePart(Stage):
    """values *= ranks / participants, or 0: the average is then the mean of those that take part.

    To the proof these are the values: their mean over draws.
    """

    participants: Participants
    on: str = MAIN
    reads = ("values",)
    writes = ("share",)
    buffers: ClassVar[Mapping[str, str]] = {"share": "scratch"}

    def objection(self, ranks: int) -> str:
        return self.participants.objection(ranks)

    def prove(self, memory: Memory) -> None:
        memory.compute("", self.reads, "share")

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        share, values = map(bucket.buffer, ("share", "values"))
        ranks, count = bucket.ranks, self.participants.count

        def take_part(factor: float) -> None:
            here = bucket.rank in self.participants.of((bucket.own_updates - 1) // self.every, ranks)
            if here:
                np.multiply(values, ranks / count, out=share)
            else:
                share[...] = 0  # not a product: some values are not finite

        return take_part


@dataclass(frozen=True, kw_only=True)
class Adopt(Stage):
    """values = share: the average."""

    on: str = MAIN
    reads = ("share",)
    writes = ("values",)

    def prove(self, memory: Memory) -> None:
        memory.compute("", self.reads, "values")

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        share, values = map(bucket.buffer, ("share", "values"))
        return lambda factor: np.copyto(values, share)


def rounds(participants: Participants, steps: int) -> Route:
    every: dict[str, Any] = {"every": steps}
    out = Pack(), Update(alone=True, on=MAIN), TakePart(participants=participants, **every)
    average = reduce_scatter("share", op="average", **every)
    return Route("participants", (*out, average), (all_gather("share", **every), Adopt(**every), Unpack()))


STEPS, SECONDS = 10, (1.0,) * 7 + (4.0,)
WHO = {"all_ranks": Participants(8), "drawn": Participants(6), "fastest": Participants(6, SECONDS)}
all_ranks, drawn, fastest = (rounds(each, STEPS) for each in WHO.values())


class OwnMean(SoftmaxCrossEntropy):
    """Use gradients of the mean over this rank's examples."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks  # gradients' factor if one rank trains

    def forward(self, x: Array, targets: Array) -> Any:
        self.examples = len(x)
        return super().forward(x, targets)

    def backward(self, scale: float) -> Array:
        return super().backward(1 / (self.ranks * self.examples))


def train(
    world: Any,
    name: str = "fastest",
    *,
    until: float = 0.93,
    most: int = 100,
    batch: int = 16,
    seed: int = 0,
    second: float = 0.0,
) -> tuple[int, float]:
    """Return the rounds until this share of the test set is right, and their seconds.

    ``second``: of a fast rank for a batch; others take multiples (``SECONDS``), asleep.
    """
    data, own = load_data("digits", np.dtype("float32"), 0), np.random.default_rng([seed, world.rank])
    who = WHO[name]
    layers = mlp(data.train.x.shape[1:], 10, np.random.default_rng(seed), data.train.x.dtype)
    how: dict[str, Any] = {"route": f"{Path(__file__).resolve()}:{name}", "optimizer": SGD(lr=0.1)}
    with Session(layers, OwnMean(world.size), world, schedule="dear", **how) as session:
        number, begin, right = 0, time.perf_counter(), 0.0
        while number < most and right < until:
            examples = batch if world.rank in who.of(number, world.size) else 1
            for _ in range(STEPS):
                some = own.integers(0, len(data.train.x), examples)
                time.sleep(second * SECONDS[world.rank] * examples / batch)
                total = (batch - 1) * who.count + world.size
                session.step(data.train.x[some], data.train.y[some], total=total)
            session.flush()
            number, right = number + 1, accuracy(layers, data.test)
        return number, time.perf_counter() - begin


def accuracy(layers: Sequence[Any], test: Any) -> float:
    scores = test.x
    for layer in layers:
        scores = layer.forward(scores)
    return float(np.mean(scores.argmax(1) == test.y))


if __name__ == "__main__":
    for name in WHO:
        found, seconds = run_world(partial(train, name=name, second=0.005))
        print(f"{name}: {found} rounds, {seconds:.2f} s")
