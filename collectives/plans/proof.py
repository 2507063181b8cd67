"""Which algorithms may run: they exist, serve the collective and are proved. Tests prove ours, this module a user's."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dear_mpi.collectives.algorithms.registry import ALGORITHMS, programs, runner_of
from dear_mpi.collectives.algorithms.user_algorithm import algorithm_source, load_algorithm
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.program.program import Program
from dear_mpi.collectives.program.user_file import Source
from dear_mpi.collectives.program.verify import verify


@dataclass(frozen=True)
class Proof:
    """The programs of all ranks, which are right: these are run. ``checksum`` shows if ranks read different files."""

    programs: Sequence[Program]
    checksum: int


def proven(name: str, collective: str, size: int, hosts: tuple[int, ...], pieces: int) -> Proof:
    """Verify a user's algorithm, as its file is now.

    Raises:
        ProgramError: it is wrong.
        ValueError: it cannot be loaded, or does not serve the collective.
    """
    return proof(algorithm_source(name), name, collective, size, hosts=hosts, pieces=pieces)


@lru_cache(maxsize=256)
def proof(source: Source, name: str, collective: str, size: int, *, hosts: tuple[int, ...], pieces: int) -> Proof:
    """``proven``, remembered: ``source`` stands for the content of the file, whose name says little."""
    # Verify what the user wrote first: an error in its mirror image names steps that are not in the user's file.
    for proved in dict.fromkeys(("all_gather", "broadcast", collective)):
        if proved == collective or serves(name, proved):
            written = programs(name, proved, size, hosts=hosts, pieces=pieces)
            verify(written)
    return Proof(written, zlib.crc32(repr(written).encode()))


def serves(name: str, collective: str) -> bool:
    """Whether an algorithm that exists, or what a tuning table picks, can carry out a collective."""
    if runner_of(name) == "native" or rules_of(name) is not None:
        return True
    return collective in (load_algorithm(name) if ":" in name else ALGORITHMS[name])
