"""The algorithms by name. To add one: write its file, add its line here; all else follows from the programs."""

from __future__ import annotations

from dear_mpi.collectives import bidirectional, bruck, naive, pairwise, ring
from dear_mpi.collectives.mirror import family
from dear_mpi.collectives.program import Algorithm, Program
from dear_mpi.collectives.transport import Transport
from dear_mpi.kernels.choose import choose

__all__ = ["ALGORITHMS", "NATIVE", "check_algorithm", "find_algorithm", "programs"]

ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "naive": {
        "reduce_scatter": naive.reduce_scatter,
        "all_gather": naive.all_gather,
        "all_reduce": naive.all_reduce,
    },
    "ring": {
        "reduce_scatter": ring.reduce_scatter,
        "all_gather": ring.all_gather,
        "all_reduce": ring.all_reduce,
    },
    "bidirectional": family(bidirectional.all_gather),
    "pairwise": family(pairwise.all_gather),
    "bruck": family(bruck.all_gather),
}

NATIVE = "native"  # the MPI library's own collectives: no program, see native.py


def check_algorithm(name: str, transport: Transport) -> None:
    """See that there is such an algorithm, and that it can run on this transport.

    Raises:
        ValueError: an unknown name, or ``native`` where there is no MPI.
    """
    choose("algorithm", name, dict.fromkeys((*ALGORITHMS, NATIVE)))
    if name == NATIVE and not transport.native:
        raise ValueError(f"algorithm 'native' needs MPI, not the transport {transport.name!r}: use 'ring'")


def find_algorithm(name: str, collective: str) -> Algorithm:
    """The function of (rank, size) that writes the programs of this collective.

    Raises:
        ValueError: no such algorithm, or no such collective.
    """
    return choose("collective", collective, choose("algorithm", name, ALGORITHMS))


def programs(name: str, collective: str, size: int) -> list[Program]:
    """The programs of all ranks.

    Raises:
        ValueError: an unknown name, or a size below 1.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    algorithm = find_algorithm(name, collective)
    return [algorithm(rank, size) for rank in range(size)]
