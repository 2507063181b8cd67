"""What of late arrivals is decided in a run: whether ranks sleep, and by how much they are late."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from dear_mpi.bench.arrivals.arrival import Arrival
from dear_mpi.bench.case import Samples
from dear_mpi.bench.stand import Stand


def decided(arrivals: Sequence[Arrival], stand: Stand) -> tuple[Arrival, ...]:
    """Ranks sleep through their delays where they share cores, or the interpreter of one process."""
    asleep = stand.crowded or not stand.world.transport.spins
    return tuple(replace(each, asleep=asleep) for each in arrivals)


def scaled(arrival: Arrival, balanced: Mapping[Any, Samples]) -> Arrival:
    """With the delay that these samples of balanced calls give, if the user gave none."""
    if arrival.scale_s is not None:
        return arrival
    calls = [median(samples.job_s("isolated")) for samples in balanced.values() if samples.times_s[0]]
    return replace(arrival, scale_s=median(calls) if calls else 0.0)
