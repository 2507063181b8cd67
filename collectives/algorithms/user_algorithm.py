"""Algorithms of users: a function in a file of their own, named as ``path/to/mine.py:my_ring``."""

from functools import wraps
from typing import Any

from dear_mpi.collectives.algorithms.mirror import family
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import Algorithm, Program, write_program
from dear_mpi.collectives.program.user_file import Source, load, source_of, telling


def algorithm_source(spec: str) -> Source:
    """The file of a user's algorithm.

    Raises:
        ValueError: there is no such Python file.
    """
    return source_of(spec, "algorithm", "my_ring")


def load_algorithm(spec: str) -> dict[str, Algorithm]:
    """The collectives that a user's function serves: the one of its programs, and what follows by mirroring.

    Raises:
        ValueError: there is no such file or function, or it cannot be imported.
        ProgramError: the function fails, or does not return a ``Program``.
    """
    algorithm: Algorithm = load(algorithm_source(spec))
    program = write_program(written_by(algorithm, spec), 0, 2)
    checked = written_by(algorithm, spec, program.collective)
    if program.collective in ("all_gather", "broadcast"):
        return family(checked, program.collective)
    return {program.collective: checked}


def written_by(algorithm: Algorithm, spec: str, collective: str | None = None) -> Algorithm:
    """The function; it raises a ProgramError where it fails, or writes another program than was asked for.

    ``collective`` is the collective of its program for two ranks. If it wrote another one for other ranks, the mirror
    image would pass for the collective that was asked for.
    """

    @wraps(algorithm)
    def write(rank: int, size: int, **options: Any) -> Program:
        with telling(f"algorithm {spec!r} fails for rank {rank} of {size}", ProgramError):
            program = algorithm(rank, size, **options)
        if not isinstance(program, Program):
            said = f"a Program for rank {rank} of {size}, not {type(program).__name__}"
            raise ProgramError(f"algorithm {spec!r} must return {said}")
        asked, found = (collective or program.collective, rank, size), (program.collective, program.rank, program.size)
        if found != asked:
            due, not_due = ("{} for rank {} of {}".format(*facts) for facts in (asked, found))
            raise ProgramError(f"algorithm {spec!r} must return a program of {due}, not of {not_due}")
        return program

    return write
