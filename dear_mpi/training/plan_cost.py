"""What plans are said to cost and to send: the cost model, asked for what each of them carries out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from dear_mpi.collectives import programs
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.program.cost import Cost, Network, cost
from dear_mpi.collectives.program.program import Program
from dear_mpi.ranks.world import World

__all__ = ["emulated_network", "plan_costs"]


def emulated_network(world: World) -> Network:
    """The network of a world whose link is emulated."""
    assert world.link is not None, "only an emulated link has known parameters"
    return Network(alpha=world.link.latency_s, beta=1 / world.link.bandwidth)


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
