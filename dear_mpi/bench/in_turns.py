"""Balanced calls and late arrivals in turns: blocks of each, so that what else the machine does hits them alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from dear_mpi.bench.arrival import Arrival
from dear_mpi.bench.case import Samples, of_job
from dear_mpi.collectives.transports.patience import crowd_of
from dear_mpi.collectives.transports.transport import Transport


def decided(arrivals: Sequence[Arrival], transport: Transport) -> tuple[Arrival, ...]:
    """Collective: ranks sleep through their delays where they share cores, or the interpreter of one process."""
    if not arrivals:
        return ()
    crowded = crowd_of(transport, 1).crowded
    return tuple(replace(each, asleep=crowded or not transport.spins) for each in arrivals)


def in_turns(
    run: Callable[[int, Arrival], dict[Any, Samples]], arrivals: Sequence[Arrival], turns: int, blocks: int
) -> dict[Arrival, dict[Any, Samples]]:
    """Run so many turns of each arrival, in so many blocks, or fewer of a turn each: the samples of each."""
    found: dict[Arrival, dict[Any, Samples]] = {each: {} for each in arrivals}
    borders = sorted({turns * number // blocks for number in range(blocks + 1)})
    for first, after in pairwise(borders):
        for each, so_far in found.items():
            for key, samples in run(after - first, replace(each, first=first)).items():
                so_far[key] = so_far[key] + samples if key in so_far else samples
    return found


def scaled(arrival: Arrival, balanced: Mapping[Any, Samples]) -> Arrival:
    """With the delay that these samples of balanced calls give, if the user gave none."""
    if arrival.scale_s is not None:
        return arrival
    calls = [float(np.median(of_job(np.array(samples.times_s), "isolated"))) for samples in balanced.values()]
    return replace(arrival, scale_s=median(calls) if calls else 0.0)
