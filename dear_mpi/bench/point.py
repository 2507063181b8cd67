"""Measure a case: all contestants take turns, also with ranks that arrive late, until it is enough."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from dear_mpi.bench.arrivals.arrival import AT_ONCE, TOGETHER, Arrival
from dear_mpi.bench.arrivals.lateness import scaled
from dear_mpi.bench.case import Case, Samples
from dear_mpi.bench.contest import Contest
from dear_mpi.bench.stand import Stand
from dear_mpi.bench.timing.interleaved import Interleaved, Key
from dear_mpi.bench.timing.pace import paced
from dear_mpi.reporting.stats import FEWEST_SAMPLES

BLOCKS = 4  # at least, where not all take turns call by call
BALANCED_TURNS = 11  # before the others: their median may be by how much ranks are late
ByArrival: TypeAlias = dict[tuple[Arrival, Key], Samples]


class LateStarts(Exception):
    """On all ranks: some was late for most moments at which a sample was to start."""


def measured(case: Case, contest: Contest, stand: Stand) -> tuple[list[tuple[Arrival, Key, Samples]], dict[str, str]]:
    """Collective: the samples of all contestants, in the order of rows, and why some are missing; or a LateStarts."""
    keys = contest.keys(case, stand.world.size)
    interleaved = Interleaved(case, keys, stand)
    try:
        found = samples_of(interleaved, contest)
    except LateStarts:
        interleaved.free()
        raise
    interleaved.free()
    names = [name for name, _ in keys]
    in_order = sorted({key for _, key in found}, key=lambda key: (names.index(key[0]), key[1]))
    arrivals = dict.fromkeys(arrival for arrival, _ in found)
    return [(arrival, key, found[arrival, key]) for arrival in arrivals for key in in_order], interleaved.left_out


def samples_of(interleaved: Interleaved, contest: Contest) -> ByArrival:
    """Collective: the samples of a case, of each arrival; or a LateStarts."""
    arrivals, taken = [TOGETHER], 0
    untimed: Mapping[Key, Samples] = {}  # whose wrong results count all the same
    if contest.arrival:
        untimed = interleaved.run(BALANCED_TURNS)
        check_starts(untimed)
        arrivals = [AT_ONCE, *(scaled(each, untimed) for each in contest.arrival)]

    def run(turns: int) -> ByArrival:
        nonlocal taken
        found: ByArrival = {}
        for arrival in arrivals:
            samples = interleaved.run(turns, replace(arrival, first=taken))
            found |= {(arrival, key): each for key, each in samples.items()}
        taken += turns
        return found

    blocks, cadence = BLOCKS if contest.in_blocks else 1, interleaved.case.cadence
    found = paced(contest, run, interleaved.transport, cadence=cadence, blocks=blocks)
    check_starts(found)
    return found | {(arrivals[0], key): found[arrivals[0], key].after(each) for key, each in untimed.items()}


def check_starts(found: Mapping[Any, Samples]) -> None:
    """A LateStarts if ranks were late for most starts of a contestant, or too few of its samples count."""
    for each in found.values():
        counted = len(each.times_s[0])
        if counted < each.late or counted < FEWEST_SAMPLES <= counted + each.late:
            raise LateStarts
