"""What users write in files of their own: ``path/to/mine.py:my_ring`` names something in one, which is run once."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Source", "load", "source_of"]


@dataclass(frozen=True)
class Source:
    """A user's function or class as it is now: relative names and files may change, what was proved may not.

    Attributes:
        kind: what it is meant for, for messages.
        path: of the file, absolute.
        name: in the file.
    """

    kind: str
    path: Path
    code: bytes
    name: str


def source_of(spec: str, kind: str, example: str) -> Source:
    """What a user has named.

    Raises:
        ValueError: there is no such Python file.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path).resolve()
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(f"{kind} file {str(file)!r} is no Python file: write it like path/to/mine.py:{example}")
    return Source(kind, file, file.read_bytes(), name)


@cache
def load(source: Source) -> Callable[..., Any]:
    """The function or class, from a file that is run once.

    Raises:
        ValueError: the file cannot be imported, or has no such function.
    """
    kind = source.kind
    spec = importlib.util.spec_from_file_location(f"{kind}_{source.path.stem}", source.path)
    assert spec is not None, "its name ends in .py"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where data classes look for it
    try:
        exec(compile(source.code, source.path, "exec"), vars(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() as well, which would end the command in silence
        raise ValueError(f"{kind} file {str(source.path)!r} fails: {type(error).__name__}: {error}") from error
    found = getattr(module, source.name, None)
    if not callable(found):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == spec.name]
        functions = ", ".join(key for key in own if not key.startswith("_")) or "none"
        raise ValueError(f"{kind} file {source.path.name} has no function {source.name!r}; it has {functions}")
    named: Callable[..., Any] = found
    return named
