"""Build routes with rounds: ranks train independently and combine their progress every few iterations.

    local      update by own gradients | every H-th: average values
    diloco     update by own gradients | every H-th: delta = anchor - values, average deltas, outer update of the anchor

    streaming  like diloco, but each bucket has another iteration, and its result is used some iterations later

The anchor holds the values of all ranks at the end of the last round. The outer update is SGD with Nesterov momentum,
and treats a delta as a gradient. If the average arrives late, ranks have trained further meanwhile: their values become
``mix`` times themselves plus (1 - ``mix``) times the anchor.

Source: Stich, Local SGD, ICLR 2019. Lin et al., Don't Use Large Mini-batches, ICLR 2020 (post-local). Douillard et al.,
DiLoCo, arXiv 2311.08105, algorithm 1; Streaming DiLoCo, arXiv 2501.18512, section 2.2 (overlap, mixing).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from dear_mpi.training.routes.legs import MAIN, BucketMemory, Leg, Pack, Unpack, Update, all_gather, reduce_scatter
from dear_mpi.training.routes.memory import Memory
from dear_mpi.training.routes.route import Route


@dataclass(frozen=True, kw_only=True)
class Delta(Leg):
    """Compute the distance of values from the anchor, with the sign of a gradient."""

    on: str = MAIN
    reads: ClassVar[tuple[str, ...]] = ("values", "anchor")
    writes: ClassVar[tuple[str, ...]] = ("delta",)
    lines: ClassVar[Mapping[str, str]] = {"anchor": "values", "delta": "scratch"}

    def prove(self, memory: Memory) -> None:
        for rank, shard in memory.places:
            way = memory.symbol("way", *(memory.read(line, rank, shard) for line in self.reads))
            memory.write("delta", rank, shard, way)

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        delta, anchor, values = map(bucket.line, ("delta", "anchor", "values"))

        def subtract(factor: float) -> None:
            delta[...] = anchor
            delta[...] -= values

        return subtract

    def __str__(self) -> str:
        return "delta = anchor - values"


@dataclass(frozen=True, kw_only=True)
class Outer(Leg):
    """Update the anchor by the averaged delta.

    m = momentum m + delta; anchor -= lr (delta + momentum m); values = mix values + (1 - mix) anchor
    """

    lr: float = 0.7
    momentum: float = 0.9
    mix: float = 0.0
    on: str = MAIN
    reads: ClassVar[tuple[str, ...]] = ("delta", "anchor", "outer momentum", "values")
    writes: ClassVar[tuple[str, ...]] = ("anchor", "outer momentum", "values")
    lines: ClassVar[Mapping[str, str]] = {"anchor": "values", "outer momentum": "equal"}

    def prove(self, memory: Memory) -> None:
        for rank, shard in memory.places:
            delta, anchor, momentum, values = (memory.read(line, rank, shard) for line in self.reads)
            anchor = memory.symbol("outer", anchor, delta, momentum)
            memory.write("anchor", rank, shard, anchor)
            memory.write("outer momentum", rank, shard, memory.symbol("kept", delta, momentum))
            memory.write("values", rank, shard, memory.symbol("mixed", values, anchor) if self.mix else anchor)

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        delta, anchor, momentum, values = map(bucket.line, self.reads)

        def update(factor: float) -> None:
            momentum[...] *= self.momentum
            momentum[...] += delta
            delta[...] += self.momentum * momentum
            delta[...] *= self.lr
            anchor[...] -= delta
            values[...] *= self.mix
            values[...] += (1 - self.mix) * anchor

        return update

    def __str__(self) -> str:
        return f"outer update (lr {self.lr:g}, momentum {self.momentum:g}, mix {self.mix:g})"


def local(period: int, *, after: int = 0) -> Route:
    """Average values every ``period`` iterations; sum gradients in the first ``after`` iterations."""
    every = {"every": period, "first": after}
    alone = (Update(alone=True, on=MAIN, first=after), reduce_scatter("values", op="average", **every))
    gathered = (all_gather("values", **every),)
    if not after:
        return Route(f"local:{period}", (Pack(), *alone), (*gathered, Unpack()))
    out = (Pack(), reduce_scatter("gradients", until=after), *alone)
    back = (all_gather("gradients", until=after), *gathered, Update(on=MAIN, until=after), Unpack())
    return Route(f"post-local:{period}:after={after}", out, back)


def diloco(
    period: int, *, lr: float = 0.7, momentum: float = 0.9, delay: int = 0, mix: float = 0.0, staggered: bool = False
) -> Route:
    """Average deltas every ``period`` iterations and use them ``delay`` iterations later.

    Args:
        staggered: whether buckets end their rounds in different iterations.
    """
    out = (
        Pack(),
        Update(alone=True, on=MAIN),
        Delta(every=period),
        reduce_scatter("delta", op="average", every=period),
    )
    outer = Outer(lr=lr, momentum=momentum, mix=mix, every=period, after=delay)
    name = f"diloco:{period}" if not staggered and not delay else f"streaming:{period}"
    return Route(name, out, (all_gather("delta", every=period), outer, Unpack()), staggered=staggered)
