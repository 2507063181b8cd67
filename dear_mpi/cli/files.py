"""The files of a command: no two that it writes are one, and none that it reads is written over."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dear_mpi.collectives.program.user_file import is_in_file
from dear_mpi.reporting.files import older

OLDER = ("--json", "--save")  # a file that is there becomes FILE.old


def check_files(read: Mapping[str, Iterable[str]], written: Sequence[tuple[str, Path | None]]) -> None:
    """See that files stay apart.

    Args:
        read: what the user gave to each flag that may name a file.
        written: each flag that names a file, and that file, if there is one.

    Raises:
        ValueError: one would be lost.
    """
    files = [(flag, path) for flag, path in written if path is not None]
    set_aside = [(flag, older(path), path.is_file()) for flag, path in files if flag in OLDER]
    taken: dict[Path, str] = {}
    for flag, path in [*files, *((f"the older file of {flag}", path) for flag, path, _ in set_aside)]:
        if taken.setdefault(path.resolve(), flag) != flag:
            raise ValueError(f"{taken[path.resolve()]} and {flag} must be different files, not both {str(path)!r}")
    named = [(flag, Path(file)) for flag, texts in read.items() for text in texts if (file := file_of(text))]
    for flag, path in [*files, *((f"the older file of {flag} as", path) for flag, path, there in set_aside if there)]:
        for what, each in named:
            if is_same(path, each):
                raise ValueError(f"{flag} {str(path)!r} would write over the file of {what}: choose another name")


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, be it through links."""
    try:
        return one.samefile(other)
    except OSError:  # not both are there
        return one.resolve() == other.resolve()


def file_of(text: str) -> str:
    """The file in what was given to a flag; "" if that is a name alone.

    >>> [file_of(text) for text in ("mine.py:build", "synthetic:mine.json", "mine.npz", "synthetic:resnet50", "mlp")]
    ['mine.py', 'mine.json', 'mine.npz', '', '']
    """
    if is_in_file(text):
        return text.rpartition(":")[0] or text
    file = text.partition(":")[2] or text
    return file if Path(file).suffix else ""
