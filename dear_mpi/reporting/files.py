"""Files that a command writes: tried before the work, and in the end there as a whole or not at all."""

import fcntl
import os
import secrets
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO

from dear_mpi.collectives.program.errors import AgreedError

TRIAL = bytes(4096)  # one block: on a full disk an empty file can still be made


def check_writable(flag: str, path: Path) -> None:
    """A ValueError if a file cannot be written; ``flag`` is how the user named it. One that is there is not touched."""
    with explaining(flag, path):
        if path.is_dir():
            raise OSError("it is a folder")
        if path.exists() and not os.access(path, os.W_OK):
            raise OSError("it is read-only")
        if is_plain(path):
            with unfinished(path) as partial:
                partial.write_bytes(TRIAL)


@contextmanager
def replacing(flag: str, path: Path) -> Iterator[Path]:
    """A path to write to, or a ValueError. After the block it replaces the file; after an error the old file stays."""
    with explaining(flag, path):
        if is_plain(path):
            with unfinished(path) as partial:
                yield partial
                partial.replace(at_end(path))  # a link stays one
        else:
            yield path


def at_end(path: Path) -> Path:
    """Where a link leads, which need not exist; a link to itself leads to itself."""
    return Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for such a link, before Python 3.13


def is_plain(path: Path) -> bool:
    """Whether it may be replaced: not so a pipe, or /dev/stdout, also where that leads to a file. An OSError if it is a
    link to itself, which no file can be written through."""
    with suppress(FileNotFoundError):
        path.stat()
    return not path.exists() or (path.is_file() and not is_stream(path))


def is_stream(path: Path) -> bool:
    """Whether the standard output, or that of errors, ends in this file."""
    for number in (1, 2):
        with suppress(OSError):  # it is closed
            if os.path.samestat(os.fstat(number), path.stat()):
                return True
    return False


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A file beside this one, of the same ending, with the mode and owner of the file that it replaces; gone after the
    block. The replaced file may have been set aside.

    It is locked meanwhile, so that ``tidy`` can tell it from what a killed run left.
    """
    whole = at_end(path)
    with locked(whole) as mine:
        partial = Path(mine.name)
        try:
            for replaced in filter(Path.is_file, (whole, older(path))):
                keep_access(partial, replaced.stat())
                break
            yield partial
        finally:
            partial.unlink(missing_ok=True)


def keep_access(partial: Path, replaced: os.stat_result) -> None:
    """Give a new file the owner, if we may, and then the mode of another: a change of owner can clear bits."""
    for owner in ((replaced.st_uid, -1), (-1, replaced.st_gid)):
        with suppress(OSError):  # not permitted, or an owner that this name space does not know
            os.chown(partial, *owner)
    of_group = 0 if partial.stat().st_gid == replaced.st_gid else stat.S_IRWXG  # bits for another group
    partial.chmod(stat.S_IMODE(replaced.st_mode) & ~of_group | stat.S_IWUSR)


def locked(whole: Path) -> BinaryIO:
    """A new unfinished file; another one where the ``tidy`` of another run was faster than the lock."""
    while True:
        mine = whole.with_name(named(whole, secrets.token_hex(4))).open("xb")
        with suppress(OSError):  # a file system without locks: tidy gets none either, and removes nothing
            fcntl.flock(mine, fcntl.LOCK_EX)  # which waits for such a tidy
        if Path(mine.name).exists():
            return mine
        mine.close()


def named(whole: Path, token: str) -> str:
    """The name of an unfinished file. It has the host in it, since some file systems lock on each host for itself."""
    return f".dear-mpi-{socket.gethostname()}-{token}-{whole.name}"


def tidy(path: Path) -> None:
    """Remove the unfinished files that killed runs on this host left of this file; what is being written stays."""
    whole = at_end(path)
    for each in whole.parent.glob(named(Path(escape(whole.name)), "?" * 8)):
        with suppress(OSError), each.open("r+b") as left:
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            each.unlink()


def set_aside(path: Path) -> None:
    """Let the file that was there be FILE.old."""
    if path.is_file() and is_plain(path):
        with suppress(FileNotFoundError):  # another run has just done it
            at_end(path).rename(older(path))


@contextmanager
def aside(path: Path | None) -> Iterator[Callable[[], None]]:
    """A call that sets a file aside; an error that all ranks end with, such as of bad input, then puts it back."""
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
    """Where the file before the last is kept: beside the file to which a link leads, so that the link stays a link."""
    whole = at_end(path)
    return whole.with_name(f"{whole.name}.old")


@contextmanager
def explaining(flag: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error if path.parent.is_dir() else f"there is no folder {str(path.parent)!r}"
        raise ValueError(f"{flag} {str(path)!r} cannot be written: {reason}") from None
