"""List the algorithms by name, and derive reductions. An algorithm has a file and a line here, or is a function in a
user's file, ``path/to/mine.py:my_ring``, or an entry point in the group ``dear_mpi.algorithms``.

Reductions are distributions that run backwards:

    all_gather          chunk 0 goes    0 --> 1 --> 3         (a tree for each chunk, away from its owner)
                                        0 --> 2
    its mirror image    chunk 0 goes    0 <-- 1 <-- 3         (the same tree, towards the owner, adding up)
                                        0 <-- 2

In an all-gather every rank gets every chunk once, so a chunk's paths form a tree rooted at its owner. Reverse the
steps, turn receives into sends, and sends into receives that combine: every rank adds its contribution once, after all
from below it have arrived. Both in turn are an all-reduce with equal bits on all ranks. A broadcast gives a reduction.

Source: Chan et al., Collective communication: theory, practice, and experience, CCPE 19 (2007): duality.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE, NEXT, Rates
from dear_mpi.collectives.program.program import (
    COLLECTIVES,
    Algorithm,
    Program,
    Receive,
    Send,
    Step,
    asks_for,
    write_program,
)
from dear_mpi.kernels.lookup import lookup

if TYPE_CHECKING:
    from dear_mpi.collectives.program.user_file import Source

__all__ = ["ALGORITHMS", "RUNNER", "find_algorithm", "programs", "runner_of"]


MIRROR = {"all_gather": "reduce_scatter", "broadcast": "reduce"}


def family(forth: Algorithm, collective: str | None = None) -> dict[str, Algorithm]:
    """Return the three collectives of an ``all_gather`` or ``broadcast`` by name.

    >>> from dear_mpi.collectives.algorithms.pairwise import all_gather
    >>> print(family(all_gather)["reduce_scatter"](0, 2))
    rank 0 of 2, reduce_scatter
      step 0: send chunk 1 to rank 1; receive chunk 0 from rank 1, combined with local data
    """
    name = collective or forth.__name__

    @wraps(forth)
    def back(*args: object, **options: object) -> Program:
        program = forth(*args, **options)
        return replace(program, collective=MIRROR[name], steps=mirrored(program))

    @wraps(forth)
    def all_reduce(*args: object, **options: object) -> Program:
        program = forth(*args, **options)
        return replace(program, collective="all_reduce", steps=mirrored(program) + program.steps)

    return {MIRROR[name]: back, name: forth, "all_reduce": all_reduce}


def completed(row: dict[str, Algorithm]) -> dict[str, Algorithm]:
    """Add the reductions that a row of collectives lacks; an all-reduce comes from an all_gather if there is one."""
    for collective in MIRROR:
        if collective in row:
            row = family(row[collective], collective) | row
    return {collective: row[collective] for collective in COLLECTIVES if collective in row}


def mirrored(program: Program) -> tuple[Step, ...]:
    if program.scratch:  # paths through copies are no trees of chunks
        what = f"{program.collective} on rank {program.rank} has scratch chunks, so it cannot run backwards"
        raise ProgramError(f"{what}: write an algorithm for {MIRROR[program.collective]} or all_reduce")
    return tuple(
        Step(
            tuple(Send(receive.peer, receive.chunks) for receive in step.receives),
            tuple(Receive(send.peer, send.chunks, combine=True) for send in step.sends),
        )
        for step in reversed(program.steps)
    )


class Rows(Mapping[str, dict[str, Algorithm]]):
    """Algorithms by collective; a row's file is imported on first lookup.

    ``written``: the file, and its function for each collective; reductions are derived.
    """

    def __init__(self, written: Mapping[str, tuple[str, Mapping[str, str]]]) -> None:
        self.written, self.made = written, dict[str, dict[str, Algorithm]]()

    def __getitem__(self, name: str) -> dict[str, Algorithm]:
        if name not in self.made:
            file, functions = self.written[name]
            module = import_module(f"dear_mpi.collectives.algorithms.{file}")
            self.made[name] = completed({each: getattr(module, function) for each, function in functions.items()})
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.written)

    def __len__(self) -> int:
        return len(self.written)


DIRECT = {"all_gather": "all_gather", "broadcast": "broadcast"}
GATHER, SUM = {"all_gather": "all_gather"}, {"all_reduce": "all_reduce"}
ALGORITHMS = Rows(
    {
        "naive": ("naive", {name: name for name in COLLECTIVES}),
        "ring": ("ring", {name: name for name in ("reduce_scatter", "all_gather", "all_reduce")}),
        "bidirectional": ("bidirectional", GATHER),
        "pairwise": ("pairwise", GATHER | {"all_to_all": "all_to_all"}),
        "ordered": ("ordered", DIRECT),
        "shared": ("ordered", DIRECT),  # without messages
        "bruck": ("bruck", GATHER),
        "recursive_doubling": ("recursive_doubling", SUM),
        "rabenseifner": ("rabenseifner", GATHER),
        "binomial": ("binomial", {"broadcast": "broadcast"}),
        "hierarchical": ("hierarchical", GATHER),
    }
)

# Levels of ``hierarchical``, and a step of ``ring``, for stages of routes. Users cannot choose what leaves partial
# results.
LEVELS = Rows(
    {
        INSIDE: ("hierarchical", {"all_gather": "inside"}),
        BETWEEN: ("hierarchical", {"all_gather": "between", "all_to_all": "exchange"}),
        NEXT: ("ring", {"all_gather": "to_next"}),
    }
)

# Algorithms with another runner (plans/runners/) than ``messages``.
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
    from dear_mpi.collectives.program.user_file import WithExtras  # for names that core lacks

    known = {each: dict[str, Algorithm]() for each in (*ALGORITHMS, *RUNNER)}  # native has none
    return lookup("algorithm", name, WithExtras(known, "algorithms", load_algorithm))


def is_ours(name: str) -> bool:
    """Return whether core's tests prove it."""
    return name in ALGORITHMS or name in LEVELS


def is_installed(name: str) -> bool:
    """Return whether core or an extra has this name; users' files have none."""
    from dear_mpi.collectives.program.user_file import entry_points_of

    return name in ALGORITHMS or name in entry_points_of("algorithms")


def check_whole(name: str) -> None:
    if name in LEVELS:
        raise ValueError(f"algorithm {name!r} is for stages of routes, and leaves partial results: choose a whole one")


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


def of_text(spec: str) -> bool:
    """Return whether an extra makes algorithms from it: a name and a text, such as ``NAME:FILE``."""
    from dear_mpi.collectives.program.user_file import entry_points_of, is_in_file

    name, colon, _ = spec.partition(":")
    return bool(colon) and not is_in_file(spec) and name in entry_points_of("algorithms")


def algorithm_source(spec: str) -> Source | None:
    """Return the file of a user's function, or the text that an extra makes algorithms from; None for other names."""
    from pathlib import Path

    from dear_mpi.collectives.program.user_file import Source, source_of

    if not of_text(spec):
        return source_of(spec, "algorithm", "my_ring") if in_file(spec) else None
    name, _, text = spec.partition(":")
    path = Path(text)
    return Source("algorithm", path, path.read_bytes() if path.is_file() else b"", name, text)


@lru_cache(maxsize=32)
def made_from(source: Source) -> Mapping[str, Algorithm]:
    """Return what an extra makes from a text, by collective; anew if the file that it names has changed."""
    from dear_mpi.collectives.program.user_file import load_extra, telling

    with telling(f"algorithm '{source.name}:{source.given}' cannot be made"):
        return load_extra("algorithms", source.name)(source.given)


def fixed(written: Sequence[Program], doc: str) -> Algorithm:
    """Return an algorithm of these programs, one for each rank; ``explain`` prints ``doc``."""

    def algorithm(rank: int, size: int) -> Program:
        if size != len(written):
            raise ValueError(f"it is for {len(written)} ranks, not for {size}")
        return written[rank]

    algorithm.__doc__ = doc
    return algorithm


def load_algorithm(spec: str) -> dict[str, Algorithm]:
    """Load a user's or an extra's function; return its collective and those derived by mirroring.

    It is tried for two ranks. What an extra makes from a text has its collectives by name, and is not tried.
    """
    from dear_mpi.collectives.program.user_file import entry_points_of, load, load_extra

    source, name = algorithm_source(spec), spec.partition(":")[0]
    if source is None or of_text(spec):
        algorithm = load_extra("algorithms", name)
        if asks_for(algorithm, "text"):
            if source is None or not source.given:
                raise ValueError(f"algorithm {spec!r} is made from a text: write {name}:TEXT, such as {name}:FILE")
            return completed({name: checked(spec, each, name) for name, each in made_from(source).items()})
        if source is not None:
            extras = entry_points_of("algorithms")
            takers = ", ".join(each for each in extras if asks_for(load_extra("algorithms", each), "text"))
            raise ValueError(f"algorithm {name!r} takes no text; these do, as in NAME:{spec}: {takers}")
    else:
        algorithm = load(source)
    collective = write_program(checked(spec, algorithm), 0, 2).collective
    return completed({collective: checked(spec, algorithm, collective)})


def checked(spec: str, algorithm: Algorithm, collective: str = "") -> Algorithm:
    """Check each program: a ProgramError reports a failure, or another collective or rank.

    The mirror image of a wrong one would pass for the right one.
    """
    from dear_mpi.collectives.program.user_file import Endless, in_time, telling

    @wraps(algorithm)
    def write(rank: int, size: int, **options: Any) -> Program:
        where = f"for rank {rank} of {size}"
        try:
            with telling(f"algorithm {spec!r} fails {where}", ProgramError):
                program = in_time(lambda: algorithm(rank, size, **options))
        except Endless as error:
            raise ProgramError(f"algorithm {spec!r} {error} ({where})") from None
        if not isinstance(program, Program):
            fault = f"a Program {where}, not {type(program).__name__}"
        elif not isinstance(program.steps, tuple | list) or not all(isinstance(step, Step) for step in program.steps):
            fault = f"steps {where} that are a tuple of Step, not {program.steps!r:.60}"
        elif (program.rank, program.size) != (rank, size) or (collective or program.collective) != program.collective:
            found = f"of {program.collective} for rank {program.rank} of {program.size}"
            fault = f"a program of {collective or program.collective} {where}, not {found}"
        else:
            return program
        raise ProgramError(f"algorithm {spec!r} must return {fault}")

    return write
