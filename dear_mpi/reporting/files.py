"""Write a command's files atomically, after a trial before the work."""

import fcntl
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO

from dear_mpi.collectives.program.errors import AgreedError

STREAMS = ("/dev", "/dev/fd", "/proc/self/fd")  # folders whose files lead to open ones
TRIAL = bytes(4096)  # one block: a full disk still allows empty files


def check_writable(flag: str, path: Path) -> None:
    """Raise a ValueError if a file is not writable; ``flag`` is its name for the user. An existing file stays
    untouched.
    """
    with explaining(flag, path):
        if path.is_dir():
            raise OSError("it is a folder")
        if path.exists() and not os.access(path, os.W_OK):
            raise OSError("it is read-only")
        if is_plain(path):
            with unfinished(path) as partial:
                partial.write_bytes(TRIAL)


def check_ending(flag: str, path: Path, endings: Sequence[str]) -> None:
    if path.suffix.lower() not in endings:
        raise ValueError(f"{flag} {str(path)!r} must end in {' or '.join(endings)}")


@contextmanager
def replacing(flag: str, path: Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces the file after the block; after an error the old file stays.

    Raises:
        ValueError: the file is not writable.
    """
    with explaining(flag, path):
        if is_plain(path):
            with unfinished(path) as partial:
                yield partial
                partial.replace(at_end(path))  # a link stays a link
        else:
            yield path


def at_end(path: Path) -> Path:
    """Return a link's target, which need not exist; a link to itself leads to itself."""
    return Path(os.path.realpath(path))  # before Python 3.13, Path.resolve raises a RuntimeError for such a link


def is_plain(path: Path) -> bool:
    """Return whether a file may be replaced: a pipe or /dev/stdout may not, even if it leads to a file.

    Raises:
        OSError: the path is a link to itself.
    """
    with suppress(FileNotFoundError):
        path.stat()
    return not path.exists() or (path.is_file() and str(path.absolute().parent) not in STREAMS)


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Yield an unfinished file in the same folder, with equal ending and mode; it is gone after the block.

    The replaced file may have been set aside. A lock tells ``tidy`` that the file is not the rest of a killed run.
    """
    whole = at_end(path)
    with locked(whole) as mine:
        partial = Path(mine.name)
        try:
            for replaced in filter(Path.is_file, (whole, older(path))):
                shutil.copymode(replaced, partial)
                partial.chmod(partial.stat().st_mode | stat.S_IWUSR)
                break
            yield partial
        finally:
            partial.unlink(missing_ok=True)


def locked(whole: Path) -> BinaryIO:
    """Create a locked unfinished file; retry if another run's ``tidy`` was faster than the lock."""
    while True:
        mine = whole.with_name(named(whole, secrets.token_hex(4))).open("xb")
        with suppress(OSError):  # a file system without locks: tidy gets none either, and removes nothing
            fcntl.flock(mine, fcntl.LOCK_EX)  # waits for such a tidy
        if Path(mine.name).exists():
            return mine
        mine.close()


def named(whole: Path, token: str) -> str:
    """Name an unfinished file. The name contains the host, since some file systems lock only within a host."""
    return f".dear-mpi-{socket.gethostname()}-{token}-{whole.name}"


def tidy(path: Path) -> None:
    """Remove this file's unfinished versions by killed runs of this host; files in progress stay."""
    whole = at_end(path)
    for each in whole.parent.glob(named(Path(escape(whole.name)), "?" * 8)):
        with suppress(OSError), each.open("r+b") as left:
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            each.unlink()


def set_aside(path: Path) -> None:
    """Rename an existing file to FILE.old."""
    if path.is_file() and is_plain(path):
        with suppress(FileNotFoundError):  # another run has just renamed it
            at_end(path).rename(older(path))


@contextmanager
def aside(path: Path | None) -> Iterator[Callable[[], None]]:
    """Yield a call that sets a file aside; an error of all ranks, such as bad input, restores it."""
    moved = []

    def move() -> None:
        if path is not None and path.is_file() and is_plain(path):
            set_aside(path)
            moved.append(path)

    try:
        yield move
    except (ValueError, AgreedError):
        for each in moved:
            older(each).rename(at_end(each))
        raise


def older(path: Path) -> Path:
    """Return the place of the previous file: next to a link's target, so that the link stays a link."""
    whole = at_end(path)
    return whole.with_name(f"{whole.name}.old")


@contextmanager
def explaining(flag: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error if path.parent.is_dir() else f"there is no folder {str(path.parent)!r}"
        raise ValueError(f"{flag} {str(path)!r} cannot be written: {reason}") from None
