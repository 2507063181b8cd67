"""List the algorithms by name. To add one, write its file and add a line here.

A user's algorithm is ``path/to/mine.py:my_ring``, the function ``my_ring`` of that file.
"""

from collections.abc import Sequence
from functools import wraps
from typing import Any

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
    themis,
    torus,
)
from dear_mpi.collectives.algorithms.mirror import MIRROR, family
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE, Rates
from dear_mpi.collectives.program.program import COLLECTIVES, Algorithm, Program, Step, asks_for, write_program
from dear_mpi.collectives.program.user_file import Endless, Source, in_time, is_in_file, load, source_of, telling
from dear_mpi.kernels.lookup import lookup

__all__ = ["ALGORITHMS", "RUNNER", "find_algorithm", "programs", "runner_of"]


def by_name(*functions: Algorithm) -> dict[str, Algorithm]:
    return {function.__name__: function for function in functions}


ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "naive": by_name(
        naive.reduce_scatter, naive.all_gather, naive.all_reduce, naive.broadcast, naive.reduce, naive.all_to_all
    ),
    "ring": by_name(ring.reduce_scatter, ring.all_gather, ring.all_reduce),
    "bidirectional": family(bidirectional.all_gather),
    "pairwise": family(pairwise.all_gather) | by_name(pairwise.all_to_all),
    "ordered": family(ordered.all_gather),
    "shared": family(ordered.all_gather),  # the same, without messages
    "bruck": family(bruck.all_gather),
    "recursive_doubling": by_name(recursive_doubling.all_reduce),
    "rabenseifner": family(rabenseifner.all_gather),
    "swing": family(swing.all_gather),
    "binomial": family(binomial.broadcast),
    "double_tree": by_name(double_tree.all_reduce),
    "hierarchical": family(hierarchical.all_gather),
    "torus": family(torus.all_gather),
    "themis": family(themis.all_gather),
}

# Levels of ``hierarchical`` for the stages of routes. One without the other leaves partial results, so users cannot
# choose them.
LEVELS: dict[str, dict[str, Algorithm]] = {
    INSIDE: family(hierarchical.inside, "all_gather"),
    BETWEEN: family(hierarchical.between, "all_gather") | {"all_to_all": hierarchical.exchange},
}

# Algorithms with another runner (plans/runners/) than ``messages``. ``native`` has no program.
RUNNER = {"shared": "shared", "native": "native"}


def runner_of(name: str) -> str:
    """Return ``messages``, ``shared`` (memory) or ``native`` (the MPI library)."""
    return RUNNER.get(name, "messages")


def find_algorithm(name: str, collective: str) -> Algorithm:
    """Return the function that writes a collective's programs; ValueError: unknown, or not served."""
    lookup("collective", collective, COLLECTIVES)
    served = served_by(name)
    if collective not in served:
        others = ", ".join(other for other, row in ALGORITHMS.items() if collective in row)
        serves = f"serves {', '.join(served)}, not {collective}" if served else f"has no program for {collective}"
        raise ValueError(f"algorithm {name!r} {serves}; these do: {others}")
    return served[collective]


def served_by(name: str) -> dict[str, Algorithm]:
    if name in LEVELS:
        return LEVELS[name]
    known: dict[str, dict[str, Algorithm]] = ALGORITHMS | {other: {} for other in RUNNER if other not in ALGORITHMS}
    return load_algorithm(name) if ":" in name or is_in_file(name) else lookup("algorithm", name, known)


def is_ours(name: str) -> bool:
    """Return whether the tests prove this algorithm."""
    return name in ALGORITHMS or name in LEVELS


def check_whole(name: str) -> None:
    if name in LEVELS:
        raise ValueError(f"algorithm {name!r} is one level of hierarchical, with partial results: use hierarchical")


def programs(
    name: str,
    collective: str,
    size: int,
    *,
    hosts: Sequence[int] | None = None,
    rates: Rates | None = None,
    pieces: int = 1,
) -> list[Program]:
    """Return the programs of all ranks; options as in ``Algorithm``."""
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    algorithm = find_algorithm(name, collective)
    return [write_program(algorithm, rank, size, hosts=hosts, rates=rates, pieces=pieces) for rank in range(size)]


def lacks_rates(name: str, hosts: Sequence[int], rates: Rates | None) -> bool:
    if rates is not None or len(set(hosts)) < 2:
        return False
    return any(asks_for(function, "rates") for function in served_by(name).values())


def algorithm_source(spec: str) -> Source:
    return source_of(spec, "algorithm", "my_ring")


def load_algorithm(spec: str) -> dict[str, Algorithm]:
    """Load a user's function and return its collective and those derived by mirroring.

    It is tried for two ranks. A ProgramError in any call reports a failure, or a program of another collective or rank:
    its mirror image would pass for the right one.
    """
    algorithm, collective = load(algorithm_source(spec)), ""

    @wraps(algorithm)
    def write(rank: int, size: int, **options: Any) -> Program:
        try:
            with telling(f"algorithm {spec!r} fails for rank {rank} of {size}", ProgramError):
                program = in_time(lambda: algorithm(rank, size, **options))
        except Endless as error:
            raise ProgramError(f"algorithm {spec!r} {error} (for rank {rank} of {size})") from None
        if not isinstance(program, Program):
            said = f"a Program for rank {rank} of {size}, not {type(program).__name__}"
            raise ProgramError(f"algorithm {spec!r} must return {said}")
        if not isinstance(program.steps, tuple | list) or not all(isinstance(step, Step) for step in program.steps):
            said = f"steps for rank {rank} of {size} that are a tuple of Step, not {program.steps!r:.60}"
            raise ProgramError(f"algorithm {spec!r} must return {said}")
        due = f"{collective or program.collective} for rank {rank} of {size}"
        found = f"{program.collective} for rank {program.rank} of {program.size}"
        if found != due:
            raise ProgramError(f"algorithm {spec!r} must return a program of {due}, not of {found}")
        return program

    collective = write_program(write, 0, 2).collective  # from here on every call must return this one
    return family(write, collective) if collective in MIRROR else {collective: write}
