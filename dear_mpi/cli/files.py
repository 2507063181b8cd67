"""The files of a command: no two that it writes are one, and none that it reads is written over."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dear_mpi.cli.flags import Flags
from dear_mpi.collectives.program.user_file import is_in_file
from dear_mpi.reporting.files import check_different, check_kept, older

OLDER = ("--json", "--save")  # a file that is there becomes FILE.old


def read_by(flags: Flags) -> dict[str, list[str | None]]:
    """What the user gave to the flags of a training job that may name files."""
    return {f"--{name}": [flags.get(name)] for name in ("model", "data", "schedule", "route", "algorithm", "fusion")}


def check_files(read: Mapping[str, Iterable[str | None]], written: Sequence[tuple[str, Path | None]]) -> None:
    """See that files stay apart.

    Args:
        read: what the user gave to each flag that may name a file.
        written: each flag that names a file, and that file, if there is one.

    Raises:
        ValueError: one would be lost.
    """
    replaced = [(flag, path) for flag, path in written if flag in OLDER and path is not None]
    check_different([*written, *((f"the older file of {flag}", older(path)) for flag, path in replaced)])
    old = [(f"the older file of {flag} as", older(path)) for flag, path in replaced if path.is_file()]
    named = [(flag, file_of(text)) for flag, texts in read.items() for text in texts if text is not None]
    check_kept([(flag, Path(file)) for flag, file in named if file], [*written, *old])


def file_of(text: str) -> str:
    """The file in what was given to a flag; "" if that is a name alone.

    >>> [file_of(text) for text in ("mine.py:build", "synthetic:mine.json", "mine.npz", "synthetic:resnet50", "mlp")]
    ['mine.py', 'mine.json', 'mine.npz', '', '']
    """
    if is_in_file(text):
        return text.rpartition(":")[0] or text
    file = text.partition(":")[2] or text
    return file if Path(file).suffix else ""
