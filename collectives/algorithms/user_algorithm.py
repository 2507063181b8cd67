"""Algorithms of users: a function in a file of their own, named as ``path/to/mine.py:my_ring``."""

import importlib.util
import sys
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any

from dear_mpi.collectives.algorithms.mirror import family
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import Algorithm, Program, write_program

__all__ = ["Source", "load_algorithm", "source_of"]


@dataclass(frozen=True)
class Source:
    """A user's function as it is now: relative names and files may change, what was proved may not."""

    path: Path  # absolute
    code: bytes
    function: str


def source_of(spec: str) -> Source:
    """
    Raises:
        ValueError: there is no such Python file.
    """
    path, _, function = spec.rpartition(":")
    file = Path(path).resolve()
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(f"algorithm file {str(file)!r} is no Python file: write it like path/to/mine.py:my_ring")
    return Source(file, file.read_bytes(), function)


def load_algorithm(spec: str) -> dict[str, Algorithm]:
    """The collectives that a user's function serves: the one of its programs, and what follows by mirroring.

    Raises:
        ValueError: there is no such file or function, or it cannot be imported.
        ProgramError: the function fails, or does not return a ``Program``.
    """
    algorithm = loaded(source_of(spec))
    program = write_program(written_by(algorithm, spec), 0, 2)
    checked = written_by(algorithm, spec, program.collective)
    if program.collective in ("all_gather", "broadcast"):
        return family(checked, program.collective)
    return {program.collective: checked}


def written_by(algorithm: Algorithm, spec: str, collective: str | None = None) -> Algorithm:
    """The function; it raises a ProgramError where it fails, or writes another program than was asked for.

    ``collective`` is the one of its program for two ranks: where it wrote another one for other ranks, what is mirrored
    would pass for what was asked for.
    """

    @wraps(algorithm)
    def write(rank: int, size: int, **options: Any) -> Program:
        try:
            program = algorithm(rank, size, **options)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() as well, which would end the command in silence
            said = f"{type(error).__name__}: {error}"
            raise ProgramError(f"algorithm {spec!r} fails for rank {rank} of {size}: {said}") from error
        if not isinstance(program, Program):
            said = f"a Program for rank {rank} of {size}, not {type(program).__name__}"
            raise ProgramError(f"algorithm {spec!r} must return {said}")
        asked, found = (collective or program.collective, rank, size), (program.collective, program.rank, program.size)
        if found != asked:
            due, not_due = ("{} for rank {} of {}".format(*facts) for facts in (asked, found))
            raise ProgramError(f"algorithm {spec!r} must return a program of {due}, not of {not_due}")
        return program

    return write


@cache
def loaded(source: Source) -> Algorithm:
    """The function, from a file that is run once."""
    spec = importlib.util.spec_from_file_location(f"algorithm_{source.path.stem}", source.path)
    assert spec is not None, "its name ends in .py"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where data classes look for it
    try:
        exec(compile(source.code, source.path, "exec"), vars(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(f"algorithm file {str(source.path)!r} fails: {type(error).__name__}: {error}") from error
    algorithm = getattr(module, source.function, None)
    if not callable(algorithm):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == spec.name]
        functions = ", ".join(key for key in own if not key.startswith("_")) or "none"
        raise ValueError(f"algorithm file {source.path.name} has no function {source.function!r}; it has {functions}")
    found: Algorithm = algorithm
    return found
