"""A case is measured: all contestants take turns, those of another MPI library's job in blocks, and late arrivals too.

block    ours and MPI's, together | late ranks |  the other MPI's job | late ranks |  and again, until it is enough
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from dear_mpi.bench.arrivals.arrival import AT_ONCE, TOGETHER, Arrival
from dear_mpi.bench.arrivals.lateness import scaled
from dear_mpi.bench.case import Case, Samples
from dear_mpi.bench.contest import Contest
from dear_mpi.bench.makers.contestants import contestant
from dear_mpi.bench.makers.other_mpi import OtherMpi
from dear_mpi.bench.stand import Stand
from dear_mpi.bench.timing.interleaved import Interleaved, Key
from dear_mpi.bench.timing.pace import after, paced
from dear_mpi.reporting.stats import FEWEST_SAMPLES

BLOCKS = 4  # at least, where not all take turns call by call
BALANCED_TURNS = 11  # before the others: their median may be by how much ranks are late
Found: TypeAlias = list[tuple[Arrival, Key, Samples]]
ByArrival: TypeAlias = dict[tuple[Arrival, Key], Samples]


def measured(
    case: Case, contest: Contest, stand: Stand, others: Mapping[str, OtherMpi]
) -> tuple[Found, dict[str, str]]:
    """Collective: the samples of all contestants, in the order of rows, and why some are missing; or a LateStarts."""
    transport = stand.world.transport
    keys = contest.keys(case, transport.size)
    interleaved = Interleaved(case, [key for key in keys if contestant(key[0]).maker not in others], stand)
    turns = Turns(case, interleaved, keys, others)
    if others:
        turns.run_untimed(1)  # a job under another MPI prepares its arrays
    try:
        found = turns.measure(contest)
    except LateStarts:
        interleaved.free()
        raise
    in_order = [(arrival, key, found[arrival, key]) for arrival in turns.arrivals for key in turns.in_order(found)]
    interleaved.free()
    return in_order, interleaved.left_out | turns.left_out


class LateStarts(Exception):
    """On all ranks: some was late for most moments at which a sample was to start."""


class Turns:
    """The contestants of a case, here and in the jobs of other MPI libraries, take turns."""

    def __init__(
        self, case: Case, interleaved: Interleaved, keys: Sequence[Key], others: Mapping[str, OtherMpi]
    ) -> None:
        self.case, self.interleaved, self.others, self.keys = case, interleaved, others, keys
        self.theirs = {library: dict(key for key in keys if contestant(key[0]).maker == library) for library in others}
        self.arrivals, self.taken = [TOGETHER], 0
        self.left_out = dict[str, str]()
        self.untimed = dict[Key, Samples]()  # whose wrong results are still to be added to others

    def run(self, turns: int, arrival: Arrival = TOGETHER) -> dict[Key, Samples]:
        """So many samples of each."""
        found = dict[Key, Samples]()
        for library, cuts in self.theirs.items():
            samples, missing = self.others[library].run(self.case, turns, list(cuts), arrival)
            found |= {(call, cuts[call]): each for call, each in samples.items()}
            self.left_out |= missing
        return self.interleaved.run(turns, arrival, skipped=bool(self.others)) | found

    def run_untimed(self, turns: int) -> dict[Key, Samples]:
        """The same; of these samples the wrong results alone will count."""
        found = self.run(turns)
        self.keep(found)
        return found

    def keep(self, found: Mapping[Key, Samples]) -> None:
        self.untimed |= after(found, self.untimed)

    def measure(self, contest: Contest) -> ByArrival:
        """Collective: the samples of all; or a LateStarts."""
        if contest.arrival:
            balanced = self.run_untimed(BALANCED_TURNS)
            check_starts(balanced)
            self.arrivals = [AT_ONCE, *(scaled(each, balanced) for each in contest.arrival)]
        transport, blocks = self.interleaved.transport, BLOCKS if contest.in_blocks else 1
        found = paced(contest, self.of_each_arrival, transport, cadence=self.case.cadence, blocks=blocks)
        check_starts(found)
        return found

    def of_each_arrival(self, turns: int) -> ByArrival:
        found: ByArrival = {}
        for arrival in self.arrivals:
            samples = self.run(turns, replace(arrival, first=self.taken))
            found |= {(arrival, key): each.after(self.untimed.pop(key, None)) for key, each in samples.items()}
        self.taken += turns
        return found

    def in_order(self, found: Mapping[tuple[Arrival, Key], Samples]) -> list[Key]:
        """The keys of those that were measured, in the order of rows."""
        names = [name for name, _ in self.keys]
        return sorted({key for _, key in found}, key=lambda key: (names.index(key[0]), key[1]))


def check_starts(found: Mapping[Any, Samples]) -> None:
    """A LateStarts if ranks were late for most starts of a contestant, or too few of its samples count."""
    for each in found.values():
        counted = len(each.times_s[0])
        if counted < each.late or counted < FEWEST_SAMPLES <= counted + each.late:
            raise LateStarts
