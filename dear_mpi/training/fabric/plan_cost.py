"""Price a job's plans, by the model of an emulated link or by measuring; count their messages."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dear_mpi.collectives import make_plan, programs
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.program.cost import Cost, Network, cost
from dear_mpi.collectives.transports.emulated import Link
from dear_mpi.kernels.array import array_module
from dear_mpi.kernels.slab import round_up
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.fabric.virtual import Price, WireCost
from dear_mpi.training.routes.stages import Collective, Sent

RUNS, RUNS_OF_ALL = 5, 3  # of one plan, and of all buckets' plans; the best run counts
SIZES = 16 * 1024, 8 * 1024 * 1024  # bytes, between which a line is fitted


def communication(fabric: LiveFabric, collectives: Iterable[str]) -> dict[str, float]:
    """Return the mean seconds per iteration of each collective, for all buckets in turn and without compute.

    Collective, while nothing is under way; overwrites gradients. The model of an emulated link does not overlap steps:
    exact for the ring, pessimistic if many ranks send to one.
    """
    link, hosts = fabric.world.link, fabric.world.transport.hosts
    found = dict.fromkeys(collectives, 0.0)
    for collective in found:
        fabric.prepare([collective])
        for stage in fabric.route.collectives(collective):
            if share := share_of(fabric, stage):
                plans = [fabric.plan(stage, bucket) for bucket in fabric.buckets]
                all_s = modelled_s(link, hosts, plans) if link and link.modelled else measured_s(fabric, plans)
                found[collective] += share * all_s
    return found


def share_of(fabric: LiveFabric, stage: Collective) -> float:
    """Return the share of iterations that run this stage; of codes, that have fitted so far."""
    seen = sum(fabric.tally)
    return stage.share if stage.fits is None or not seen else fabric.tally[stage.fits] / seen


def measured_s(fabric: LiveFabric, plans: Sequence[Plan]) -> float:
    fabric.follow(None)

    def run() -> None:
        handles: list[Any] = [fabric.launch_act(("plan", 0), plan, plan.name) for plan in plans]
        for handle in handles:
            handle.wait()

    values = fabric.arena.values.copy()
    found_s = best_s(fabric, run, RUNS_OF_ALL)
    fabric.arena.values[...] = values
    fabric.arena.wire.view("u1")[...] = 0
    return found_s


def traffic(fabric: LiveFabric, collectives: Iterable[str]) -> tuple[float, float] | None:
    """Return messages and bytes per iteration of the rank that sends most, for prepared plans.

    Returns None if a plan is no program of messages.
    """
    stages, period = [stage for each in collectives for stage in fabric.route.collectives(each)], fabric.route.period
    plans = [fabric.plan(stage, bucket) for stage in stages for bucket in fabric.buckets]
    if any(runner_of(plan.algorithm) != "messages" for plan in plans):
        return None
    sent = np.array([(each.messages, each.nbytes) for each in plan_costs(plans, Network())])  # (plans, 2, ranks)
    per_interval = [round(share_of(fabric, stage) * period) for stage in stages]
    messages, nbytes = np.tensordot(np.repeat(per_interval, len(fabric.buckets)), sent, 1).max(axis=1).tolist()
    return (messages, nbytes) if period == 1 else (messages / period, nbytes / period)


def modelled_s(link: Link, hosts: Sequence[int], plans: Iterable[Plan]) -> float:
    return sum(each.time_s for each in plan_costs(plans, network_of(link, hosts)))


def network_of(link: Link, hosts: Sequence[int]) -> Network:
    """Convert an emulated link; ``between`` applies only between hosts."""
    inside = Network(alpha=link.latency_s, beta=1 / link.bandwidth)
    return inside if link.between is None else replace(inside, hosts=tuple(hosts), between=network_of(link.between, ()))


def plan_costs(plans: Iterable[Plan], network: Network) -> Iterator[Cost]:
    """Yield the cost of each plan on all ranks; equal plans are priced once."""
    found: dict[Hashable, Cost] = {}
    for plan in plans:
        call, hosts, rates = plan.call, tuple(plan.transport.hosts), plan.transport.rates
        pieces, partition = -(-call.x.nbytes // plan.segment_bytes), call.partition(len(hosts))
        key = (plan.algorithm, call.collective, hosts, rates, pieces, call.x.itemsize, partition)
        if key not in found:
            written = programs(plan.algorithm, call.collective, len(hosts), hosts=hosts, rates=rates, pieces=pieces)
            found[key] = cost(written, partition.count, call.x.itemsize, network, partition)
        yield found[key]


def plan_s(fabric: LiveFabric, plan: Plan, *, timed: bool = False) -> float:
    """Return a plan's seconds, modelled on an emulated link unless ``timed``. Collective; may zero its buffer."""
    link = fabric.world.link
    if link is not None and link.modelled and not timed:
        return modelled_s(link, fabric.world.transport.hosts, [plan])
    found_s = best_s(fabric, plan, RUNS)
    plan.call.x.view("u1")[...] = 0
    return found_s


def best_s(fabric: LiveFabric, run: Callable[[], object], repeats: int) -> float:
    """Return the best run, as long as its slowest rank. Collective."""
    gather, found = fabric.world.transport.gather_values, list[float]()
    for _ in range(repeats):
        gather(None)
        begin = fabric.now()
        run()
        found.append(max(gather(fabric.seconds(begin, fabric.now()))))
    return min(found)


class WirePrices:
    """Price buckets from two sizes of each collective, measured once."""

    def __init__(self, fabric: LiveFabric, *, timed: bool = False) -> None:
        self.fabric, self.timed, self.costs = fabric, timed, dict[Sent, WireCost]()

    def of(self, names: Iterable[str]) -> Price:
        """Return prices of collectives and extras, equal on all ranks. Collective; overwrites gradients."""
        for name in names:
            for stage in self.fabric.route.sent(name):
                if stage not in self.costs:
                    self.costs[stage] = self.cost(stage)
        return lambda stage, bucket: self.costs[stage](self.fabric.arena.nbytes_of(stage.buffer, bucket))

    def cost(self, stage: Sent) -> WireCost:
        """Fit a line. Collective."""
        wire, grid = self.fabric.arena.wire, self.fabric.arena.layout.grid
        if stage.few:
            return WireCost(self.seconds(stage, grid), 0.0)
        sizes = [min(round_up(nbytes // wire.itemsize, grid), wire.size) for nbytes in SIZES]
        small, large = ((size * wire.itemsize, self.seconds(stage, size)) for size in sizes)
        return WireCost(0.0, large[1] / large[0]) if small[0] == large[0] else WireCost.through(small, large)

    def seconds(self, stage: Sent, count: int) -> float:
        """Time ``count`` elements, rounded up. Collective."""
        fabric, wire, transport = self.fabric, self.fabric.arena.wire, self.fabric.world.transport
        count = round_up(count, transport.size)
        x = wire[:count] if count <= wire.size else array_module(wire).zeros(count, wire.dtype)
        with make_plan(stage.name, x, transport, **fabric.options | stage.options(fabric.options["algorithm"])) as plan:
            return plan_s(fabric, plan, timed=self.timed)
