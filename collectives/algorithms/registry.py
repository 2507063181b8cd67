"""List the algorithms by name. To add one, write its file and add a line here.

An algorithm can also be a user's: ``path/to/mine.py:my_ring`` is the function ``my_ring`` of that file. A package may
publish such a function as an entry point in the group ``dear_mpi.algorithms`` (``program/extras.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dear_mpi.collectives.algorithms.mirror import MIRROR, family
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE, Rates
from dear_mpi.collectives.program.program import COLLECTIVES, Algorithm, Program, Step, write_program
from dear_mpi.kernels.lookup import lookup

if TYPE_CHECKING:
    from dear_mpi.collectives.program.user_file import Source

__all__ = ["ALGORITHMS", "RUNNER", "find_algorithm", "programs", "runner_of"]


class Rows(Mapping[str, dict[str, Algorithm]]):
    """An algorithm's functions by collective. Its file is imported on the first lookup: a job uses a few of them.

    Args:
        written: module, and the name of its function for each collective; reductions are derived by mirroring.
    """

    def __init__(self, written: Mapping[str, tuple[str, Mapping[str, str]]]) -> None:
        self.written, self.made = written, dict[str, dict[str, Algorithm]]()

    def __getitem__(self, name: str) -> dict[str, Algorithm]:
        if name not in self.made:
            file, functions = self.written[name]
            module = import_module(f"dear_mpi.collectives.algorithms.{file}")
            row = {collective: getattr(module, function) for collective, function in functions.items()}
            for collective in MIRROR.keys() & functions:
                row = family(row[collective], collective) | row
            self.made[name] = {collective: row[collective] for collective in COLLECTIVES if collective in row}
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.written)

    def __len__(self) -> int:
        return len(self.written)


GATHER, SUM = {"all_gather": "all_gather"}, {"all_reduce": "all_reduce"}
ALGORITHMS = Rows(
    {
        "naive": ("naive", {name: name for name in COLLECTIVES}),
        "ring": ("ring", {name: name for name in ("reduce_scatter", "all_gather", "all_reduce")}),
        "bidirectional": ("bidirectional", GATHER),
        "pairwise": ("pairwise", GATHER | {"all_to_all": "all_to_all"}),
        "ordered": ("ordered", GATHER),
        "shared": ("ordered", GATHER),  # the same, without messages
        "bruck": ("bruck", GATHER),
        "recursive_doubling": ("recursive_doubling", SUM),
        "rabenseifner": ("rabenseifner", GATHER),
        "binomial": ("binomial", {"broadcast": "broadcast"}),
        "hierarchical": ("hierarchical", GATHER),
    }
)

# The levels of ``hierarchical``, for the stages of routes. One without the other leaves partial results,
# so nobody may choose one.
LEVELS = Rows(
    {
        INSIDE: ("hierarchical", {"all_gather": "inside"}),
        BETWEEN: ("hierarchical", {"all_gather": "between", "all_to_all": "exchange"}),
    }
)

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
    for rows in (ALGORITHMS, LEVELS):
        if name in rows:
            return rows[name]
    if in_file(name):
        return load_algorithm(name)
    from dear_mpi.collectives.program.extras import WithExtras  # for names that core does not have

    known: dict[str, dict[str, Algorithm]] = {each: {} for each in (*ALGORITHMS, *RUNNER)}  # native has none
    return lookup("algorithm", name, WithExtras(known, "algorithms", load_algorithm))


def is_ours(name: str) -> bool:
    """Return whether core's tests prove this algorithm."""
    return name in ALGORITHMS or name in LEVELS


def is_installed(name: str) -> bool:
    """Return whether core or an installed extra has this algorithm; not a user's file."""
    from dear_mpi.collectives.program.extras import entry_points_of

    return name in ALGORITHMS or name in entry_points_of("algorithms")


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


def in_file(name: str) -> bool:
    return ":" in name or name.endswith(".py")


def algorithm_source(spec: str) -> Source:
    from dear_mpi.collectives.program.extras import extra_in_file
    from dear_mpi.collectives.program.user_file import source_of

    return source_of(spec if in_file(spec) else extra_in_file("algorithms", spec), "algorithm", "my_ring")


def load_algorithm(spec: str) -> dict[str, Algorithm]:
    """Load a user's function and return its collective and those derived by mirroring.

    It is tried for two ranks. A ProgramError in any call reports a failure, or a program of another collective or rank:
    its mirror image would pass for the right one.
    """
    from dear_mpi.collectives.program.user_file import Endless, in_time, load, telling

    algorithm, collective = load(algorithm_source(spec)), ""

    @wraps(algorithm)
    def write(rank: int, size: int, **options: Any) -> Program:
        where = f"for rank {rank} of {size}"
        try:
            with telling(f"algorithm {spec!r} fails {where}", ProgramError):
                program = in_time(lambda: algorithm(rank, size, **options))
        except Endless as error:
            raise ProgramError(f"algorithm {spec!r} {error} ({where})") from None
        due, found = f"a Program {where}", type(program).__name__
        if isinstance(program, Program):
            steps = program.steps
            if not isinstance(steps, tuple | list) or not all(isinstance(step, Step) for step in steps):
                due, found = f"steps {where} that are a tuple of Step", f"{steps!r:.60}"
            else:
                due = f"a program of {collective or program.collective} {where}"
                found = f"of {program.collective} for rank {program.rank} of {program.size}"
                if due == f"a program {found}":
                    return program
        raise ProgramError(f"algorithm {spec!r} must return {due}, not {found}")

    collective = write_program(write, 0, 2).collective  # from here on every call must return this one
    return family(write, collective) if collective in MIRROR else {collective: write}
