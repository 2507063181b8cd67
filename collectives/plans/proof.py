"""Which algorithms may run: they exist, serve the collective and are proved. Tests prove ours, this module a user's."""

import zlib
from functools import cache

from dear_mpi.collectives.algorithms.registry import ALGORITHMS, programs, runner_of
from dear_mpi.collectives.algorithms.user_algorithm import load_algorithm
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.program.verify import verify

__all__ = ["proven", "serves"]


@cache
def proven(name: str, collective: str, size: int, hosts: tuple[int, ...], pieces: int) -> int:
    """Verify a user's algorithm; return a checksum of its programs, which shows if ranks read different files.

    Raises:
        ProgramError: it is wrong.
    """
    # Verify what the user wrote first: an error in its mirror image names steps that are not in the user's file.
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
