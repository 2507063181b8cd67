"""What a rank sends in an iteration, by the programs of the plans."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from dear_mpi.collectives import programs
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.program.cost import Cost, Network, cost
from dear_mpi.training.fabric.live import LiveFabric

__all__ = ["traffic"]


def traffic(fabric: LiveFabric, collectives: Iterable[str]) -> tuple[int, int] | None:
    """Messages and bytes of the rank that sends most, for all buckets; None where some plan is no program of messages.

    To be called when the plans are prepared; not collective.
    """
    size, hosts = fabric.world.size, fabric.world.transport.hosts

    @cache
    def sent(algorithm: str, collective: str, pieces: int, count: int, itemsize: int) -> Cost:
        return cost(programs(algorithm, collective, size, hosts=hosts, pieces=pieces), count, itemsize, Network())

    messages, nbytes = [0] * size, [0] * size
    for collective in collectives:
        for bucket in fabric.buckets:
            for plan in fabric.plans_of(collective, bucket):
                if runner_of(plan.algorithm) != "messages":
                    return None
                x = plan.call.x
                pieces = -(-x.nbytes // plan.segment_bytes)
                found = sent(plan.algorithm, plan.call.collective, pieces, x.size, x.itemsize)
                messages = [a + b for a, b in zip(messages, found.messages, strict=True)]
                nbytes = [a + b for a, b in zip(nbytes, found.nbytes, strict=True)]
    return max(messages), max(nbytes)
