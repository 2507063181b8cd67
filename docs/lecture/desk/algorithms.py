"""An algorithm of a cell: its steps for a board, its proof, its price, and its place in a race."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dear_mpi.collectives import programs, verify
from dear_mpi.collectives.algorithms.registry import algorithm_source, load_algorithm, served_by
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import Algorithm, Program, write_program
from dear_mpi.collectives.program.user_file import load
from dear_mpi.contrib.pages.algorithms import MEANINGS
from dear_mpi.contrib.pages.steps import steps_of
from dear_mpi.see.explain import PROMISES, prove_messages

MOST_RANKS = 8
ITEMSIZE = 4
NETWORK = Network(alpha=50e-6, beta=8e-10, gamma=0.0)  # 10 Gbit/s
RIVALS = ("ring", "bidirectional", "recursive_doubling", "rabenseifner")
RACED_BYTES = (1 << 10, 64 << 10, 4 << 20)


@dataclass
class Written:
    """An algorithm for so many ranks, as far as it is right: ``fault`` is what the proof says of it."""

    name: str
    collective: str  # that is shown: the asked one, or the reader's own where that is wrong or does not give the asked
    ranks: int
    programs: Sequence[Program]
    serves: Sequence[str]
    sizes: Sequence[int]  # numbers of ranks for which it is proved
    fault: ProgramError | None = None
    drawn: Sequence[Program] = ()  # those of the fault, which may be for other ranks

    @classmethod
    def of(cls, name: str, collective: str, ranks: int, sizes: Sequence[int]) -> "Written":
        """Write and prove it; ProgramError: it cannot even be written."""
        family = load_algorithm(name)
        own = own_collective(name)
        for each in dict.fromkeys([own, collective] if collective in family else [own]):
            written = cls(name, each, ranks, programs(name, each, ranks), tuple(family), sizes)
            written.prove()
            if written.fault:
                break
        return written

    def prove(self) -> None:
        """Find what is wrong on the number of ranks that is shown, or else on another one, which is drawn then."""
        for size in (self.ranks, *self.sizes):
            found = self.drawn = self.programs
            try:
                found = programs(self.name, self.collective, size)
                prove(found)
            except ProgramError as error:
                self.fault = error if size == self.ranks else ProgramError(f"on {size} ranks: {error}")
                self.drawn = found
                return

    @property
    def promise(self) -> str:
        *others, last = map(str, self.sizes)
        return f"Proved for {', '.join(others)} and {last} ranks{PROMISES['messages']}"

    def seconds(self, nbytes: int, collective: str = "") -> float:
        return seconds_of(self.name, collective or self.collective, self.ranks, nbytes)


def prove(written: Sequence[Program]) -> None:
    """ProgramError: a step cannot be done, the end is not what is promised, or messages cannot be matched."""
    verify(written)
    prove_messages(written)


def own_collective(name: str) -> str:
    """The collective that a user's function itself is about; others follow by mirroring."""
    return write_program(load(algorithm_source(name)), 0, 2).collective


def all_ranks(function: Algorithm, ranks: int) -> list[Program]:
    """One run of what a reader wrote: each rank's steps once."""
    return [write_program(function, rank, ranks) for rank in range(ranks)]


def seconds_of(name: str, collective: str, ranks: int, nbytes: int, network: Network = NETWORK) -> float:
    """What an algorithm costs; one that sends piece by piece gets a piece for each 64 KiB."""
    written = programs(name, collective, ranks, pieces=max(1, min(64, nbytes >> 16)))
    return cost(written, max(1, nbytes // ITEMSIZE), ITEMSIZE, network).time_s


def board_of(written: Sequence[Program]) -> dict[str, Any]:
    """What the board shows: all steps, up to a fault."""
    begins, ends = MEANINGS[written[0].collective]
    return {"steps": steps_of(written, [0] * len(written)), "begins": begins, "ends": ends}


def figures_of(written: Written) -> list[list[str]]:
    counted = cost(written.programs, written.ranks << 20, 1, NETWORK)
    most = max(counted.nbytes) / (written.ranks << 20)
    return [
        ["steps", str(len(written.programs[0].steps))],
        ["messages of the busiest rank", str(max(counted.messages))],
        ["bytes of the busiest rank, of a buffer of n", f"{most:.3g} n"],
    ]


def race(written: Written, collective: str) -> list[list[Any]]:
    """Seconds at each of ``RACED_BYTES``, of the reader's and of ours, the fastest at the smallest size first."""
    names = [name for name in RIVALS if collective in served_by(name)]
    rows = [[name, *(seconds_of(name, collective, written.ranks, each) for each in RACED_BYTES)] for name in names]
    rows.append(["yours", *(written.seconds(each, collective) for each in RACED_BYTES)])
    return sorted(rows, key=lambda row: row[1])
