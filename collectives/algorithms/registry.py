"""The algorithms by name. To add one: write its file, add its line here; all else follows from the programs.

An algorithm can also be a user's: ``path/to/mine.py:my_ring`` is the function ``my_ring`` of that file.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache

from dear_mpi.collectives.algorithms import (
    bidirectional,
    binomial,
    bruck,
    double_tree,
    hierarchical,
    naive,
    ordered,
    pairwise,
    rabenseifner,
    recursive_doubling,
    ring,
    swing,
    torus,
)
from dear_mpi.collectives.algorithms.mirror import family
from dear_mpi.collectives.algorithms.user_algorithm import load_algorithm
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.program import Algorithm, Program, write_program
from dear_mpi.collectives.program.verify import verify
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.lookup import lookup

__all__ = ["ALGORITHMS", "NATIVE", "check_algorithm", "find_algorithm", "programs", "proven", "serves"]


def by_name(*functions: Algorithm) -> dict[str, Algorithm]:
    """Functions called as the collectives that they serve."""
    return {function.__name__: function for function in functions}


ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "naive": by_name(naive.reduce_scatter, naive.all_gather, naive.all_reduce, naive.broadcast, naive.reduce),
    "ring": by_name(ring.reduce_scatter, ring.all_gather, ring.all_reduce),
    "bidirectional": family(bidirectional.all_gather),
    "pairwise": family(pairwise.all_gather),
    "ordered": family(ordered.all_gather),
    "shared": family(ordered.all_gather),  # the same without messages: see plans/runners/shared.py
    "bruck": family(bruck.all_gather),
    "recursive_doubling": by_name(recursive_doubling.all_reduce),
    "rabenseifner": family(rabenseifner.all_gather),
    "swing": family(swing.all_gather),
    "binomial": family(binomial.broadcast),
    "double_tree": by_name(double_tree.all_reduce),
    "hierarchical": family(hierarchical.all_gather),
    "torus": family(torus.all_gather),
}

NATIVE = "native"  # the MPI library's own collectives: no program, see plans/runners/native.py


def check_algorithm(name: str, transport: Transport, *collectives: str) -> None:
    """See that there is such an algorithm for these collectives, and that it can run on this transport.

    Raises:
        ValueError: an unknown name, one that does not serve them, or ``native`` where there is no MPI.
        ProgramError: a user's algorithm is wrong; for these many ranks, ours are proven by the tests.
    """
    if name == NATIVE and not transport.native:
        raise ValueError(f"algorithm 'native' needs MPI, not the transport {transport.name!r}: use 'ring'")
    for collective in collectives if name != NATIVE and rules_of(name) is None else ():
        find_algorithm(name, collective)
        if name not in ALGORITHMS:
            proven(name, collective, transport.size, tuple(transport.hosts), pieces=1)


@cache
def proven(name: str, collective: str, size: int, hosts: tuple[int, ...], pieces: int) -> int:
    """Verify a user's algorithm; a number that differs where another file of this name writes other programs.

    Raises:
        ProgramError: it is wrong.
    """
    # First what was written: an error in its mirror image would name steps that nobody wrote.
    for proved in dict.fromkeys(("all_gather", "broadcast", collective)):
        if serves(name, proved):
            written = programs(name, proved, size, hosts=hosts, pieces=pieces)
            verify(written)
    return zlib.crc32(repr(written).encode())


def serves(name: str, collective: str) -> bool:
    """Whether an algorithm that exists, or what a tuning table picks, can carry out a collective."""
    if name == NATIVE or rules_of(name) is not None:
        return True
    return collective in (load_algorithm(name) if ":" in name else ALGORITHMS[name])


def find_algorithm(name: str, collective: str) -> Algorithm:
    """The function of (rank, size) that writes the programs of this collective.

    Raises:
        ValueError: no such algorithm or collective, or the one does not serve the other.
    """
    lookup("collective", collective, COLLECTIVES)
    served = load_algorithm(name) if ":" in name else lookup("algorithm", name, ALGORITHMS | {NATIVE: {}})
    if collective not in served:
        others = [other for other, row in ALGORITHMS.items() if collective in row]
        serves = f"serves {', '.join(served)}" if served else "has no program"
        raise ValueError(f"algorithm {name!r} {serves}, not {collective}; these do: {', '.join(others)}")
    return served[collective]


def programs(
    name: str, collective: str, size: int, *, hosts: Sequence[int] | None = None, pieces: int = 1
) -> list[Program]:
    """The programs of all ranks.

    Args:
        hosts: the number of the host of each rank; without it all are on one.
        pieces: for algorithms that send the buffer piece by piece.

    Raises:
        ValueError: an unknown name, or a size below 1.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    algorithm = find_algorithm(name, collective)
    return [write_program(algorithm, rank, size, hosts=hosts, pieces=pieces) for rank in range(size)]
