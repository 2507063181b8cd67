"""What may run: algorithms that exist, serve the collective, and are proved; ours by the tests, a user's here."""

import zlib
from functools import cache

from dear_mpi.collectives.algorithms.registry import ALGORITHMS, programs, runner_of
from dear_mpi.collectives.algorithms.user_algorithm import load_algorithm
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.program.verify import verify

__all__ = ["proven", "serves"]


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
    if runner_of(name) == "native" or rules_of(name) is not None:
        return True
    return collective in (load_algorithm(name) if ":" in name else ALGORITHMS[name])
