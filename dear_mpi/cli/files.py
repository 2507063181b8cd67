"""Check that no file is written twice, and no input is overwritten."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dear_mpi.cli.commands import as_typed
from dear_mpi.collectives.program.user_file import is_in_file, split_options
from dear_mpi.reporting.declared import listed
from dear_mpi.reporting.files import at_end, check_writable, older

if TYPE_CHECKING:
    from dear_mpi.see.timeline import TimelineFiles

Written: TypeAlias = Sequence[tuple[str, Path]]
"""Flags, each with a file that it names."""

OLDER = ("--json", "--save")  # an existing file becomes FILE.old


def written_by(flags: Mapping[str, Any], *read: str) -> Written:
    """Return a command's output files: --timeline's, and all paths except flags that are ``read``."""
    files = [(as_typed(name), path) for name, path in flags.items() if isinstance(path, Path) and name not in read]
    several = listed("--timeline", flags["timeline"]) if "timeline" in flags else ()
    return [*files, *(("--timeline", Path(file)) for file in several)]


def timeline_writer(flags: Mapping[str, Any]) -> "TimelineFiles | None":
    files = [path for flag, path in written_by(flags) if flag == "--timeline"]
    if not files:
        return None
    from dear_mpi.see.timeline import TimelineFiles

    return TimelineFiles("--timeline", files)


def try_files(written: Written) -> None:
    for flag, path in written:
        check_writable(flag, path)


def check_files(read: Mapping[str, Iterable[str]], written: Written) -> None:
    """Raise a ValueError if a file would be lost; ``read``: texts that may name files."""
    files = [*written, *((f"the older file of {flag}", older(path)) for flag, path in written if flag in OLDER)]
    named = [(flag, Path(file)) for flag, texts in read.items() for text in texts if (file := file_of(text))]
    for number, (flag, path) in enumerate(files):
        for other, each in files[:number]:
            if is_same(path, each):
                flags = " and ".join(dict.fromkeys((other, flag)))
                raise ValueError(f"{flags} must be different files, not both {str(path)!r}")
        for other, each in named:
            if is_same(path, each):
                raise ValueError(f"{flag} {str(path)!r} would write over the file of {other}: choose another name")


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, also through links."""
    return at_end(one) == at_end(other) or (one.exists() and other.exists() and one.samefile(other))


def file_of(text: str) -> str:
    """Extract the file from a flag's value; "" if it is only a name.

    >>> [file_of(text) for text in ("mine.py:Mine(a=b:c)", "synthetic:mine.json", "mine.npz", "synthetic:bert")]
    ['mine.py', 'mine.json', 'mine.npz', '']
    """
    if is_in_file(text):
        return split_options(text)[0].rpartition(":")[0] or text
    file = text.partition(":")[2] or text
    return file if Path(file).suffix else ""
