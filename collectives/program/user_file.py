"""What users write in files of their own: ``path/to/mine.py:my_ring`` names something in one, which is run once.

Calls of it must come to an end. Python cannot end a thread, so a call that does not get on is left alone: it stays on
its own, which ends with the process.
"""

import ast
import importlib.util
import os
import re
import sys
import textwrap
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

WITH_OPTIONS = ("schedule",)  # kinds that take options after their names
VALUES = ("route",)  # kinds that are neither functions nor classes
MOST = 500  # characters of an error of a user
LIMIT_S = 10.0  # from one place to the next: what users write for us takes milliseconds
LOOK_S = 0.05  # from one look at a call to the next


@dataclass(frozen=True)
class Source:
    """A user's function, class or value as it is now: relative names and files may change, what was proved may not."""

    kind: str  # what it is meant for, for messages
    path: Path  # of the file, absolute
    code: bytes
    name: str  # in the file
    given: str = ""  # options in parentheses after the name

    @property
    def text(self) -> str:
        """What ranks compare, whose files may have different paths."""
        return f"{self.name}{self.given} of a file with checksum {zlib.crc32(self.code):08x}"


def is_in_file(name: str) -> bool:
    """Whether a name is of the form ``FILE.py:NAME``, or a ``FILE.py`` without the name of a function."""
    return ".py:" in name or name.endswith(".py")


def source_of(spec: str, kind: str, example: str) -> Source:
    """What a user has named; ValueError: there is no such Python file, or no name was given."""
    spec, given = split_options(spec)
    if given and kind not in WITH_OPTIONS:
        raise ValueError(f"{kind} {spec + given!r}: a {kind} from a file takes no options: write {spec}")
    path, _, name = (spec, "", "") if spec.endswith(".py") else spec.rpartition(":")
    file = Path(os.path.realpath(path))  # resolve fails for a link to itself
    if file.suffix != ".py" or not file.is_file():
        wrong = "is no Python file" if file.exists() else "does not exist"
        raise ValueError(f"{kind} file {str(file)!r} {wrong}: write it like path/to/mine.py:{example}")
    source = Source(kind, file, file.read_bytes(), name, given)
    if not name:
        meant = " or ".join(f"{path}:{each}" for each in defined(source))
        missing = f"{path}:{example}, and define {example} there"
        raise ValueError(f"{kind} {spec!r} names a file alone: write {meant or missing}")
    return source


def split_options(spec: str) -> tuple[str, str]:
    """Split the name of something in a file from options in parentheses after it.

    >>> split_options("a(1)/mine.py:Mine(limit=4MB)"), split_options("mine.py:Mine")
    (('a(1)/mine.py:Mine', '(limit=4MB)'), ('mine.py:Mine', ''))
    """
    found = re.fullmatch(r"(.*\.py:[^:(]*)(\(.*\))", spec)
    return (found[1], found[2]) if found else (spec, "")


def source_text(name: str, kind: str, example: str) -> str:
    """A name of ours, or what a user's file has, by which ranks can see that they have the same."""
    return source_of(name, kind, example).text if is_in_file(name) else name


def defined(source: Source) -> list[str]:
    """What may be meant in a file, without running it: classes for a schedule, values for a route, else functions."""
    with telling(f"{source.kind} file {str(source.path)!r} fails"):
        nodes = ast.parse(source.code, str(source.path)).body
    if source.kind in VALUES:
        names = [ast.unparse(target) for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    else:
        wanted = ast.ClassDef if source.kind == "schedule" else ast.FunctionDef
        names = [node.name for node in nodes if isinstance(node, wanted)]
    return [name for name in names if not name.startswith("_")]


@cache
def load(source: Source) -> Any:
    """The function, class or value; ValueError: the file cannot be imported, or has no such thing."""
    kind = source.kind
    spec = importlib.util.spec_from_file_location(f"{kind}_{source.path.stem}", source.path)
    assert spec is not None, "its name ends in .py"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where data classes look for it
    with telling(f"{kind} file {str(source.path)!r} fails"):
        exec(compile(source.code, source.path, "exec"), vars(module))
    found = getattr(module, source.name, None)
    if found is None or not (callable(found) or kind in VALUES):
        wanted, there = "value" if kind in VALUES else "function or class", ", ".join(defined(source)) or "none"
        raise ValueError(f"{kind} file {source.path.name} has no {wanted} {source.name!r}; it has {there}")
    return found


@contextmanager
def telling(what: str, error_type: type[Exception] = ValueError) -> Iterator[None]:
    """Run what a user wrote: whatever it raises, but for Endless, becomes an error of this type that begins with
    ``what``."""
    try:
        yield
    except (KeyboardInterrupt, Endless):
        raise
    except BaseException as error:  # sys.exit() as well, which would end the command in silence
        said = textwrap.shorten(str(error), MOST, placeholder="...")  # in one line
        raise error_type(f"{what}: {type(error).__name__}: {said}") from error


class Endless(Exception):
    """A call has not come to an end in time."""


def in_time(call: Callable[[], T], place: Callable[[], object] = lambda: None) -> T:
    """What a call returns or raises, however long it takes, while ``place()``, where it is, changes; else Endless."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # sys.exit() as well
            future.set_exception(error)

    if sys.platform == "emscripten":  # a browser has no threads: its page can stop what does not end
        run()
        return future.result()
    threading.Thread(target=run, name="in time", daemon=True).start()
    seen, since_s = place(), time.monotonic()
    while wait([future], LOOK_S).not_done:
        now = place()
        if now != seen:
            seen, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > LIMIT_S and not future.done():
            raise Endless(f"has not come to an end after {LIMIT_S:g} seconds")
    return future.result()
