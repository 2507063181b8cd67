"""List the algorithms by name. To add one, write its file and add a line here.

An algorithm can also be a user's: ``path/to/mine.py:my_ring`` is the function ``my_ring`` of that file. A package may
publish such a function as an entry point in the group ``dear_mpi.algorithms`` (``program/extras.py``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from importlib import import_module
from typing import Any

from dear_mpi.collectives.algorithms.mirror import MIRROR, family
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.extras import WithExtras, extra_in_file
from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE, Rates
from dear_mpi.collectives.program.program import COLLECTIVES, Algorithm, Program, Step, asks_for, write_program
from dear_mpi.collectives.program.user_file import Endless, Source, in_time, is_in_file, load, source_of, telling
from dear_mpi.kernels.lookup import lookup

__all__ = ["ALGORITHMS", "RUNNER", "find_algorithm", "programs", "runner_of"]


def by_name(*functions: Algorithm) -> dict[str, Algorithm]:
    return {function.__name__: function for function in functions}


class Rows(Mapping[str, dict[str, Algorithm]]):
    """Import the file of an algorithm on the first lookup of its row: a job uses a few of them.

    Args:
        makers: functions that make the row of an algorithm from its module.
        modules: the module of each algorithm that is not named like its module.
    """

    def __init__(self, makers: Mapping[str, Callable[[Any], dict[str, Algorithm]]], modules: Mapping[str, str]) -> None:
        self.makers, self.modules, self.made = makers, modules, dict[str, dict[str, Algorithm]]()

    def __getitem__(self, name: str) -> dict[str, Algorithm]:
        if name not in self.made:
            make = self.makers[name]
            self.made[name] = make(import_module(f"dear_mpi.collectives.algorithms.{self.modules.get(name, name)}"))
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)

    def __len__(self) -> int:
        return len(self.makers)


ALGORITHMS = Rows(
    {
        "naive": lambda its: by_name(
            its.reduce_scatter, its.all_gather, its.all_reduce, its.broadcast, its.reduce, its.all_to_all
        ),
        "ring": lambda its: by_name(its.reduce_scatter, its.all_gather, its.all_reduce),
        "bidirectional": lambda its: family(its.all_gather),
        "pairwise": lambda its: family(its.all_gather) | by_name(its.all_to_all),
        "ordered": lambda its: family(its.all_gather),
        "shared": lambda its: family(its.all_gather),  # the same as ordered, without messages
        "bruck": lambda its: family(its.all_gather),
        "recursive_doubling": lambda its: by_name(its.all_reduce),
        "rabenseifner": lambda its: family(its.all_gather),
        "swing": lambda its: family(its.all_gather),
        "binomial": lambda its: family(its.broadcast),
        "double_tree": lambda its: by_name(its.all_reduce),
        "hierarchical": lambda its: family(its.all_gather),
        "torus": lambda its: family(its.all_gather),
        "themis": lambda its: family(its.all_gather),
    },
    {"shared": "ordered"},
)

# The levels of ``hierarchical``, for the legs of routes. One without the other leaves partial results,
# so nobody may choose one.
LEVELS = Rows(
    {
        INSIDE: lambda its: family(its.inside, "all_gather"),
        BETWEEN: lambda its: family(its.between, "all_gather") | {"all_to_all": its.exchange},
    },
    {INSIDE: "hierarchical", BETWEEN: "hierarchical"},
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
    if name in LEVELS:
        return LEVELS[name]
    if ":" in name or is_in_file(name):
        return load_algorithm(name)
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    known: dict[str, dict[str, Algorithm]] = {each: {} for each in (*ALGORITHMS, *RUNNER)}  # native has none
    return lookup("algorithm", name, WithExtras(known, "algorithms", load_algorithm))


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
    in_file = ":" in spec or is_in_file(spec)
    return source_of(spec if in_file else extra_in_file("algorithms", spec), "algorithm", "my_ring")


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
