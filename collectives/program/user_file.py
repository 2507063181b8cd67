"""Load functions, classes and values from users' files: ``path/to/mine.py:my_ring``. A file runs once.

Calls have a time limit; an endless one keeps its daemon thread.
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
VALUES = ("route",)
MOST = 500  # characters of a user's error
LIMIT_S = 10.0  # user code takes milliseconds
LOOK_S = 0.05  # between looks at a call
PARSING = threading.Lock()  # ast.parse fails at random in several threads (Python 3.11.7)


@dataclass(frozen=True)
class Source:
    """File and name as read: the file may change after its proof."""

    kind: str
    path: Path  # absolute
    code: bytes
    name: str
    given: str = ""

    @property
    def text(self) -> str:
        """Leave out the path, which differs by rank."""
        return f"{self.name}{self.given} of a file with checksum {zlib.crc32(self.code):08x}"


def is_in_file(name: str) -> bool:
    return ".py:" in name or name.endswith(".py")


def source_of(spec: str, kind: str, example: str) -> Source:
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
        raise ValueError(f"{kind} {spec!r} lacks a name after the file: write {meant or missing}")
    return source


def split_options(spec: str) -> tuple[str, str]:
    """Split off options in parentheses after a name in a file.

    >>> split_options("a(1)/mine.py:Mine(limit=4MB)"), split_options("mine.py:Mine")
    (('a(1)/mine.py:Mine', '(limit=4MB)'), ('mine.py:Mine', ''))
    """
    found = re.fullmatch(r"(.*\.py:[^:(]*)(\(.*\))", spec)
    return (found[1], found[2]) if found else (spec, "")


def source_text(name: str, kind: str, example: str) -> str:
    """Return our name, or a user's source's checksum, to compare ranks."""
    return source_of(name, kind, example).text if is_in_file(name) else name


def defined(source: Source) -> list[str]:
    with PARSING, telling(f"{source.kind} file {str(source.path)!r} fails"):
        nodes = ast.parse(source.code, str(source.path)).body
    if source.kind in VALUES:
        names = [ast.unparse(target) for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    else:
        wanted = ast.ClassDef if source.kind == "schedule" else ast.FunctionDef
        names = [node.name for node in nodes if isinstance(node, wanted)]
    return [name for name in names if not name.startswith("_")]


@cache
def load(source: Source) -> Any:
    kind = source.kind
    spec = importlib.util.spec_from_file_location(f"{kind}_{source.path.stem}", source.path)
    assert spec is not None, "its name ends in .py"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # data classes look here
    with telling(f"{kind} file {str(source.path)!r} fails"):
        exec(compile(source.code, source.path, "exec"), vars(module))
    found = getattr(module, source.name, None)
    if found is None or not (callable(found) or kind in VALUES):
        wanted, there = "value" if kind in VALUES else "function or class", ", ".join(defined(source)) or "none"
        raise ValueError(f"{kind} file {source.path.name} has no {wanted} {source.name!r}; it has {there}")
    return found


@contextmanager
def telling(what: str, error_type: type[Exception] = ValueError) -> Iterator[None]:
    """Turn exceptions of user code, except Endless, into ``error_type`` with a prefix."""
    try:
        yield
    except (KeyboardInterrupt, Endless):
        raise
    except BaseException as error:  # sys.exit() as well, which would end the command in silence
        said = textwrap.shorten(str(error), MOST, placeholder="...")
        raise error_type(f"{what}: {type(error).__name__}: {said}") from error


class Endless(Exception):
    """A call has exceeded its time limit."""


def in_time(call: Callable[[], T], place: Callable[[], object] = lambda: None) -> T:
    """Limit a call's time, restarted when ``place()`` changes; raises Endless."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    if sys.platform == "emscripten":  # no threads; a page can stop an endless call
        run()
        return future.result()
    threading.Thread(target=run, name="in time", daemon=True).start()
    seen, since_s = place(), time.monotonic()
    while wait([future], LOOK_S).not_done:
        now = place()
        if now != seen:
            seen, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > LIMIT_S and not future.done():
            raise Endless(f"did not finish within {LIMIT_S:g} seconds")
    return future.result()
