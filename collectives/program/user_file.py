"""Load code that is not core's: from users' files, and by entry points from extras and other packages.

``path/to/mine.py:my_ring`` names a function, a class or a value in a file, which runs once. Calls have a time limit; an
endless one keeps its daemon thread. A group of entry points, such as ``dear_mpi.schedules``, is read on a name that
core lacks. A place, ``module:name``, is imported when its name is used.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
CONTRIB = "dear_mpi.contrib."

WITH_OPTIONS = ("schedule",)  # kinds that take options after their names
VALUES = ("route",)
ERROR_CHARACTERS = 500  # characters of an error
LIMIT_S = 10.0  # seconds without progress: user code takes milliseconds
LOOK_S = 0.05
PARSING = threading.Lock()  # in several threads at once, ast.parse fails at random (Python 3.11.7)


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
        """Identify the source without its path, which may differ between ranks."""
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
    except BaseException as error:  # sys.exit() as well, which would end the command silently
        said = textwrap.shorten(str(error), ERROR_CHARACTERS, placeholder="...")
        raise error_type(f"{what}: {type(error).__name__}: {said}") from error


class Endless(Exception):
    """A call has exceeded its time limit."""


def in_time(call: Callable[[], T], place: Callable[[], object] = lambda: None) -> T:
    """Limit a call's time, restarted when ``place()`` changes; raises Endless."""
    from concurrent.futures import Future, wait  # slow to import

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


@cache
def entry_points_of(group: str) -> dict[str, "EntryPoint"]:
    """Return a group's entry points, without extras in a deleted folder: metadata still names them."""
    from importlib.metadata import entry_points  # slow to import

    return {each.name: each for each in entry_points(group=f"dear_mpi.{group}") if not is_deleted(each.value)}


def is_deleted(place: str) -> bool:
    module = place.partition(":")[0]
    try:  # git leaves a folder with byte code, without origin
        return module.startswith(CONTRIB) and getattr(find_spec(module), "origin", None) is None
    except ModuleNotFoundError:  # contrib is gone
        return True


def load_place(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@cache
def load_extra(group: str, name: str) -> Any:
    """Import an entry point; a ValueError names it and its package."""
    found = entry_points_of(group)[name]
    package = found.dist.name if found.dist else "an unknown package"
    what = f"{name!r} of {package} (entry point {found.value!r} in the group 'dear_mpi.{group}')"
    with telling(f"{what} cannot be loaded"):
        return found.load()


class WithExtras(Mapping[str, T]):
    """Extend core's table by a group's names, which cannot replace core's.

    ``load`` returns the value of such a name.
    """

    def __init__(self, core: Mapping[str, T], group: str, load: Callable[[str], T] | None = None) -> None:
        self.core, self.group, self.load = core, group, load or partial(load_extra, group)

    def __getitem__(self, name: str) -> T:
        if name in self.core or name not in entry_points_of(self.group):
            return self.core[name]
        return self.load(name)

    def __contains__(self, name: object) -> bool:
        return name in self.core or name in entry_points_of(self.group)

    def __iter__(self) -> Iterator[str]:
        yield from {**self.core, **entry_points_of(self.group)}

    def __len__(self) -> int:
        return len(list(iter(self)))
