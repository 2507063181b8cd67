"""What plans cost and send: as the cost model says it, or as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache

from dear_mpi.collectives import programs
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.program.cost import Cost, cost
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.program import Program
from dear_mpi.ranks.world import World
from dear_mpi.training.fabric.live import LiveFabric

REPEATS = 5


def emulated_network(world: World) -> Network:
    """The network of a world whose link is emulated."""
    assert world.link is not None, "only an emulated link has known parameters"
    return Network(alpha=world.link.latency_s, beta=1 / world.link.bandwidth)


def all_plans(fabric: LiveFabric, collective: str) -> list[Plan]:
    """The plans that carry out what a schedule calls by this name, of all buckets."""
    return [plan for bucket in fabric.buckets for plan in fabric.plans_of(collective, bucket)]


def plan_costs(plans: Iterable[Plan], network: Network) -> Iterator[Cost]:
    """The cost of each plan on all ranks, in pieces as it cuts them; what is alike is asked for once."""

    @cache
    def written(algorithm: str, collective: str, size: int, hosts: tuple[int, ...], pieces: int) -> list[Program]:
        return programs(algorithm, collective, size, hosts=hosts, pieces=pieces)

    @cache
    def found(kind: tuple[str, str, int, tuple[int, ...], int], count: int, itemsize: int) -> Cost:
        return cost(written(*kind), count, itemsize, network)

    for plan in plans:
        x, transport, collective = plan.call.x, plan.transport, plan.call.collective
        pieces = -(-x.nbytes // plan.segment_bytes)
        kind = plan.algorithm, collective, transport.size, tuple(transport.hosts), pieces
        yield found(kind, x.size, x.itemsize)


def plan_s(fabric: LiveFabric, plan: Plan, *, timed: bool = False) -> float:
    """Collective: seconds of a plan, by the cost model on an emulated link, unless they are to be ``timed``.

    What the plan works on may be zeros afterwards.
    """
    if fabric.world.link is not None and not timed:
        (found,) = plan_costs([plan], emulated_network(fabric.world))
        return found.time_s
    found_s = best_s(fabric, plan, REPEATS)
    plan.call.x.view("u1")[...] = 0
    return found_s


def best_s(fabric: LiveFabric, run: Callable[[], object], repeats: int) -> float:
    """Collective: the best of a few runs, each as long as its slowest rank."""
    gather = fabric.world.transport.gather_values
    found: list[float] = []
    for _ in range(repeats):
        gather(None)
        begin = fabric.now()
        run()
        found.append(max(gather(fabric.seconds(begin, fabric.now()))))
    return min(found)
