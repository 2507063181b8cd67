"""Algorithms of users: a function in a file of their own, named as ``path/to/mine.py:my_ring``."""

import importlib.util
import sys
from functools import cache
from pathlib import Path

from dear_mpi.collectives.algorithms.mirror import family
from dear_mpi.collectives.program.program import Algorithm, Program, write_program

__all__ = ["load_algorithm"]


def load_algorithm(spec: str) -> dict[str, Algorithm]:
    """The collectives that a user's function serves: the one of its programs, and what follows by mirroring.

    Raises:
        ValueError: there is no such file or function, it cannot be imported, or does not return a ``Program``.
    """
    path, _, name = spec.rpartition(":")
    algorithm = loaded(Path(path).resolve(), name)
    try:
        program = write_program(algorithm, 0, 2)
    except Exception as error:
        raise ValueError(f"algorithm {spec!r} fails for rank 0 of 2: {type(error).__name__}: {error}") from error
    if not isinstance(program, Program):
        raise ValueError(f"algorithm {spec!r} must return a Program, not {type(program).__name__}")
    if program.collective in ("all_gather", "broadcast"):
        return family(algorithm, program.collective)
    return {program.collective: algorithm}


@cache
def loaded(path: Path, name: str) -> Algorithm:
    """The function of this name, from a file that is run once."""
    spec = importlib.util.spec_from_file_location(f"algorithm_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"algorithm file {str(path)!r} is no Python file: write it like path/to/mine.py:my_ring")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where data classes look for it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"algorithm file {str(path)!r} fails: {type(error).__name__}: {error}") from error
    algorithm = getattr(module, name, None)
    if not callable(algorithm):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == spec.name]
        functions = ", ".join(key for key in own if not key.startswith("_")) or "none"
        raise ValueError(f"algorithm file {path.name} has no function {name!r}; it has {functions}")
    found: Algorithm = algorithm
    return found
