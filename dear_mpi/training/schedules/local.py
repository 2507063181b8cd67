"""Local steps: train ranks independently for some iterations, then average; ``diloco`` adds an outer optimiser.

    local      update by own gradients | every H-th: average values
    diloco     update by own gradients | every H-th: delta = anchor - values, average deltas, outer update of the anchor

The anchor holds all ranks' values at the end of the last round. With ``staggered=yes`` buckets end rounds in different
iterations. With ``delay=5`` averages are used 5 iterations later, mixed with the values of then. A round ends early for
the end of a run, a checkpoint or a test.

Source: Stich, Local SGD, ICLR 2019. Lin et al., Don't Use Large Mini-batches, ICLR 2020 (post-local). Douillard et al.,
DiLoCo, arXiv 2311.08105, algorithm 1; Streaming DiLoCo, arXiv 2501.18512, section 2.2 (overlap, mixing).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dear_mpi.reporting.units import above_zero, decimal
from dear_mpi.training.routes import (
    MAIN,
    Act,
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
from dear_mpi.training.schedules.dear import Dear, DearEager
from dear_mpi.training.schedules.schedule import CollectiveSeconds, Options, yes_or_no


@dataclass(frozen=True, kw_only=True)
class Delta(Stage):
    """Compute the distance from the anchor, with a gradient's sign."""

    on: str = MAIN
    reads = ("values", "anchor")
    writes = ("delta",)
    buffers: ClassVar[Mapping[str, str]] = {"anchor": "values", "delta": "scratch"}

    def prove(self, memory: Memory) -> None:
        memory.compute("way", self.reads, "delta")

    def bind(self, bucket: BucketMemory) -> Act:
        delta, anchor, values = map(bucket.buffer, ("delta", "anchor", "values"))

        def subtract(factor: float) -> None:
            delta[...] = anchor
            delta[...] -= values

        return subtract

    def __str__(self) -> str:
        return "delta = anchor - values"


@dataclass(frozen=True, kw_only=True)
class Outer(Stage):
    """Update the anchor by the averaged delta, with SGD and Nesterov momentum.

    m = momentum m + delta; anchor -= lr (delta + momentum m); values = mix values + (1 - mix) anchor
    """

    lr: float = 0.7
    momentum: float = 0.9
    mix: float = 0.0
    on: str = MAIN
    reads = ("delta", "anchor", "outer momentum", "values")
    writes = ("anchor", "outer momentum", "values")
    buffers: ClassVar[Mapping[str, str]] = {"anchor": "values", "outer momentum": "equal"}

    def prove(self, memory: Memory) -> None:
        memory.compute("outer", ("anchor", "delta", "outer momentum"), "anchor")
        memory.compute("kept", ("delta", "outer momentum"), "outer momentum")
        if self.mix:
            memory.compute("mixed", ("values", "anchor"), "values")
        else:
            memory.compute("", ("anchor",), "values")

    def bind(self, bucket: BucketMemory) -> Act:
        delta, anchor, momentum, values = map(bucket.buffer, self.reads)

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


def share(what: str, text: str) -> float:
    found = decimal(text)
    if found is None or not 0 <= found <= 1:
        raise ValueError(f"{what} must be a number from 0 to 1, not {text!r}")
    return found


class Local(Dear):
    """Average values every ``period`` iterations."""

    options: ClassVar[Options] = {"period": above_zero}
    period = 10

    @classmethod
    def own_route(cls) -> Route:
        alone = Update(alone=True, on=MAIN), reduce_scatter("values", op="average", every=cls.period)
        return Route(f"local:{cls.period}", (Pack(), *alone), (all_gather("values", every=cls.period), Unpack()))

    @classmethod
    def least(cls, ff: float, bp: float, network: CollectiveSeconds, parts: int = 1) -> float:
        # One iteration of a round waits; ``network`` holds the round's means.
        route = cls.own_route()
        whole_s = {name: seconds * route.period for name, seconds in network.items()}
        if route.lags:
            return max(ff + bp, DearEager.bound(0.0, 0.0, network))
        return ((route.period - 1) * (ff + bp) + super().least(ff, bp, whole_s, parts)) / route.period


class PostLocal(Local):
    """Sum gradients for ``after`` iterations, then be ``Local``."""

    options: ClassVar[Options] = {"period": above_zero, "after": above_zero}
    after = 100

    @classmethod
    def own_route(cls) -> Route:
        until: dict[str, Any] = {"until": cls.after}
        every = {"every": cls.period, "first": cls.after}
        alone = Update(alone=True, on=MAIN, first=cls.after), reduce_scatter("values", op="average", **every)
        out = Pack(), reduce_scatter("gradients", **until), *alone
        back = all_gather("gradients", **until), all_gather("values", **every), Update(on=MAIN, **until), Unpack()
        return Route(f"post-local:{cls.period}:after={cls.after}", out, back)


class DiLoCo(Local):
    """Average the ranks' movement every ``period`` iterations, as the outer optimiser's gradient."""

    options: ClassVar[Options] = {
        "period": above_zero,
        "lr": share,
        "momentum": share,
        "delay": above_zero,
        "mix": share,
        "staggered": yes_or_no,
    }
    lr, momentum, delay, mix, staggered = 0.7, 0.9, 0, 0.0, False

    @classmethod
    def own_route(cls) -> Route:
        if cls.delay >= cls.period:
            raise ValueError(f"delay must be less than the period, {cls.period}, not {cls.delay}")
        every: dict[str, Any] = {"every": cls.period}
        delta = Delta(**every), reduce_scatter("delta", op="average", **every)
        outer = Outer(lr=cls.lr, momentum=cls.momentum, mix=cls.mix, after=cls.delay, **every)
        name = f"{'streaming' if cls.staggered or cls.delay else 'diloco'}:{cls.period}"
        back = all_gather("delta", **every), outer, Unpack()
        return Route(name, (Pack(), Update(alone=True, on=MAIN), *delta), back, staggered=cls.staggered)
