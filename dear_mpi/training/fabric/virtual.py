"""Simulate the fabric with a clock, one engine and a price per collective; no MPI or memory.

    compute   | forward, for its given seconds | backward ...              wait: the clock moves on to the end

    engine           | collective | collective |                           one at a time, in the engine's order

Compute and messages do not slow each other down. The clock is one number if all ranks are alike, else a vector. A
collective begins when the last rank has started it, and ends on all ranks at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, TypeAlias

import numpy as np

from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.kernels.slab import round_up
from dear_mpi.training.buckets.layout import Bucket, Cut, Layout, cut
from dear_mpi.training.events import Event, Log
from dear_mpi.training.fabric.fabric import Fabric, Handle, Key, Tasks, Turn
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.routes.route import Route
from dear_mpi.training.routes.stages import Collective, CopyState, Sent, Stage, Update

Price: TypeAlias = Callable[[Sent, Bucket], float]
# Slowdown of a layer call, on all ranks or on each, by pass (forward and backward, from 0) and place in it:
# 2 x call forward and 2 x call + 1 backward.
Noise: TypeAlias = Callable[[int, int], Any]


def unscaled(seconds: Any) -> Any:
    return seconds


def steady(number: int, place: int) -> float:
    return 1.0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """List the costs of an iteration, in seconds; default: free."""

    forward_s: Sequence[float] = ()  # of each layer call, for one part of a batch
    backward_s: Sequence[float] = ()
    weights_s: Mapping[int, float] = field(default_factory=dict)  # of layer calls with a second half of backward
    exchange_s: Mapping[int, float] = field(default_factory=dict)  # of a layer call's exchange before each pass
    price: Price = lambda stage, bucket: 0.0
    parts: int = 1  # into which a batch is split
    loss_s: float = 0.0
    verdict_s: float = 0.0  # of the global gradient check
    update_s: float = 0.0  # of the optimiser, per element
    rest_s: float = 0.0  # between forward and backward, outside layers
    code_factor: float = 1.0  # slowdown of codes against their wire's figures
    start_s: float = 0.0  # until an idle engine starts
    wake_s: float = 0.0  # until the main thread resumes after a wait
    ranks: int = 1  # ranks that share a sharded update
    served: float = 1.0  # largest share of a bucket, of one rank, between hosts
    ranks_per_core: float = 1.0  # for updates, one after the other; other seconds include it
    # Update work of a bucket and of its shards, in elements. None: equal shards.
    work: Callable[[Bucket], tuple[float, Any]] | None = None
    portions: Callable[[str, Bucket], int] = lambda collective, bucket: 1  # into which a collective can be broken
    compute: Callable[[Any], Any] = unscaled  # from nominal to each rank's
    noise: Noise = steady

    def work_of(self, bucket: Bucket) -> tuple[float, Any]:
        return (float(bucket.count), bucket.count / self.ranks) if self.work is None else self.work(bucket)

    def update_seconds(self, elements: Any) -> Any:
        """Return the seconds to update these elements; ranks that share a core wait for each other."""
        if self.ranks_per_core > 1:
            shared = self.ranks_per_core * np.mean(elements)
            elements = shared if np.ndim(elements) == 0 else np.maximum(elements, shared)
        return self.update_s * elements


@dataclass(frozen=True)
class WireCost:
    """Price a collective linearly in bytes, for buckets without plans."""

    alpha: float  # s of an empty collective
    beta: float  # s per byte of the buffer

    @classmethod
    def through(cls, small: tuple[int, float], large: tuple[int, float]) -> "WireCost":
        """Fit two pairs of bytes and seconds, without negative coefficients.

        >>> WireCost.through((100, 2.0), (300, 4.0))
        WireCost(alpha=1.0, beta=0.01)
        """
        beta = max(0.0, (large[1] - small[1]) / max(1, large[0] - small[0]))
        return cls(max(0.0, small[1] - beta * small[0]), beta)

    def __call__(self, nbytes: float) -> float:
        return self.alpha + self.beta * nbytes


def whole_cost(collectives: Sequence[str], route: Route, layout: Layout, prices: Callable[[Cut], Price]) -> WireCost:
    probe = cut(layout, [layout.grid])
    price = route.priced(prices(probe))
    small, large = ((each.nbytes, sum(price(name, each) for name in collectives)) for each in (probe[0], probe[-1]))
    return WireCost.through(small, large)


def portion_of(bucket: Bucket, portion: Portion) -> Bucket:
    if portion == WHOLE:
        return bucket
    share = (portion.last - portion.first) / portion.of
    return replace(bucket, stop=bucket.start + ceil(bucket.count * share), nbytes=ceil(bucket.nbytes * share))


@dataclass(eq=False)
class VirtualHandle(Handle):
    submitted_s: Any  # starts of tasks, on all ranks or on each
    event: Event | None = None  # the beginning of the last task


class VirtualFabric(Fabric):
    """Run a schedule on a clock; keep the last ``kept`` iterations in the log."""

    idle = 0.0

    def __init__(self, rules: Rules, costs: Costs, *, kept: int = 1) -> None:
        super().__init__(rules.buckets, rules.route, Log(kept), judged=rules.judged)
        self.rules, self.costs, self.look = rules, costs, costs.verdict_s
        self.iteration = round_up(rules.route.begin, rules.route.period)  # earlier ones are not predicted
        self.clock_s: Any = 0.0  # of all ranks or of each
        self.engine_free_s = 0.0

    def act(self, stage: Stage, bucket: Bucket, portion: Portion, *, back: bool) -> float:
        """Return a stage's seconds; packing, unpacking and the codes' fallback are free."""
        if isinstance(stage, Collective):
            return self.costs.price(stage, portion_of(bucket, portion)) if stage.share else 0.0
        if isinstance(stage, CopyState):
            return self.costs.price(stage, bucket)
        return last(self.computed_s(stage, bucket))

    def computed_s(self, stage: Stage, bucket: Bucket) -> Any:
        seconds: Any = self.costs.code_factor * stage.served_s(bucket.count, self.costs.ranks, self.costs.served)
        if isinstance(stage, Update):
            seconds = seconds + self.costs.update_seconds(stage.elements(*self.costs.work_of(bucket)))
        return self.costs.compute(seconds)

    def handle(self, key: Key, label: str, tasks: Tasks | None) -> VirtualHandle:
        return VirtualHandle(key, label, tasks, self.clock_s, Event(*key, 0.0, 0.0) if tasks is None else None)

    def carry(self, turn: Turn, handle: VirtualHandle) -> None:
        assert handle.tasks is not None, "it is not over"
        begin_s = max(self.engine_free_s, last(handle.submitted_s) + self.costs.start_s)
        since_s = handle.submitted_s
        for kind, number, what, seconds in handle.tasks(turn):
            event = self.log.carried(kind, number, begin_s, begin_s + seconds, what, since=since_s)
            begin_s, since_s = begin_s + seconds, None
        self.engine_free_s = begin_s
        if turn.ends:
            handle.event, handle.tasks = event, None

    def block(self, handle: VirtualHandle) -> None:
        if handle.event is None:
            said = f"waits for the {handle.label} though it has not started what comes before"
            self.rules.refuse(f"{said}, {self.order.next}: it would wait for ever")
        self.clock_s = later(self.clock_s, handle.event.end, self.costs.wake_s)

    def run(self, stage: Stage, bucket: Bucket, factor: float) -> None:
        self.clock_s = self.clock_s + self.computed_s(stage, bucket)

    def spend(self, seconds: Any) -> None:
        self.clock_s = self.clock_s + self.costs.compute(seconds)

    def now(self) -> Any:
        return self.clock_s

    def seconds(self, begin: Any, end: Any) -> Any:
        return end - begin


def later(times_s: Any, bound_s: float, wake_s: float = 0.0) -> Any:
    """Raise times below the bound to it plus ``wake_s``; plain numbers skip NumPy, for speed."""
    if isinstance(times_s, float):
        return times_s if times_s >= bound_s else bound_s + wake_s
    return np.where(times_s >= bound_s, times_s, bound_s + wake_s)


def last(times_s: Any) -> float:
    return times_s if isinstance(times_s, float) else float(times_s.max())


def of_rank(times_s: Any, rank: int) -> float:
    return float(times_s) if np.ndim(times_s) == 0 else float(times_s[rank])
