"""Write a command's files atomically, after a trial before the work; report unwritable standard output (a full disk).

The latter is one line, and exit code 1.
"""

import io
import os
import secrets
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO, Any

from dear_mpi.collectives.program.errors import AgreedError

STREAMS = ("/dev", "/dev/fd", "/proc/self/fd")  # their files lead to open ones
TRIAL = bytes(4096)  # a full disk still allows empty files
PREFIX = f".dear-mpi-{socket.gethostname()}-"


def check_writable(flag: str, path: Path) -> None:
    """Raise a ValueError if a file, which stays untouched, cannot be written."""
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
    """Yield a path that replaces the file after the block unless it fails; ValueError: it cannot be written."""
    with explaining(flag, path):
        if is_plain(path):
            with unfinished(path) as partial:
                yield partial
                partial.replace(at_end(path))  # a link stays
        else:
            yield path


def at_end(path: Path) -> Path:
    """Return a link's target, or a link to itself."""
    return Path(os.path.realpath(path))  # before Python 3.13, Path.resolve raises a RuntimeError for the latter


def is_plain(path: Path) -> bool:
    """Return whether a file may be replaced: no pipe, nor /dev/stdout."""
    with suppress(FileNotFoundError):
        path.stat()
    return not path.exists() or (path.is_file() and str(path.absolute().parent) not in STREAMS)


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Yield an unfinished file in its folder, of its ending and mode, gone after the block.

    The replaced file may have been set aside.
    """
    whole = at_end(path)
    partial = whole.with_name(named(whole, os.getpid()))
    partial.touch(exist_ok=False)
    try:
        for replaced in filter(Path.is_file, (whole, older(path))):
            shutil.copymode(replaced, partial)
            partial.chmod(partial.stat().st_mode | stat.S_IWUSR)
            break
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def named(whole: Path, process: int) -> str:
    return f"{PREFIX}{process}-{secrets.token_hex(4)}-{whole.name}"


def tidy(path: Path) -> None:
    """Remove this file's unfinished versions by killed processes of this host."""
    whole = at_end(path)
    for each in whole.parent.glob(f"{escape(PREFIX)}*-????????-{escape(whole.name)}"):
        try:
            os.kill(int(each.name.removeprefix(PREFIX).partition("-")[0]), 0)
        except ProcessLookupError:
            each.unlink(missing_ok=True)
        except (ValueError, OSError):  # a user's file, or another user's process
            continue


def set_aside(path: Path) -> bool:
    """Rename FILE to FILE.old; return whether there was one."""
    if not path.is_file() or not is_plain(path):
        return False
    with suppress(FileNotFoundError):  # another run has just renamed it
        at_end(path).rename(older(path))
    return True


@contextmanager
def aside(path: Path | None) -> Iterator[Callable[[], None]]:
    """Yield a call that sets a file aside; errors of all ranks restore it."""
    moved = []

    def move() -> None:
        if path is not None and set_aside(path):
            moved.append(path)

    try:
        yield move
    except (ValueError, AgreedError):
        for each in moved:
            older(each).rename(at_end(each))
        raise


def older(path: Path) -> Path:
    whole = at_end(path)
    return whole.with_name(f"{whole.name}.old")


@contextmanager
def explaining(flag: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error if path.parent.is_dir() else f"there is no folder {str(path.parent)!r}"
        raise ValueError(f"{flag} {str(path)!r} cannot be written: {reason}") from None


def printable(text: str) -> str:
    """Escape characters that command a terminal: names come from others' files.

    >>> printable("a\\x1b[2Jb"), printable("µs")
    ('a\\\\x1b[2Jb', 'µs')
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


def to_nowhere(stream: IO[str]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class StandardOutput(io.TextIOWrapper):
    """Report a failed write once, or nothing if the reader has left; then discard text.

    The command finishes its work, so that no rank waits.
    """

    lost = False

    def write(self, text: str) -> int:
        with self.unless_full():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self.unless_full():
            super().flush()

    @contextmanager
    def unless_full(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            to_nowhere(self)
        except OSError as error:
            to_nowhere(self)
            self.lost = True
            with suppress(OSError):
                print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)


@contextmanager
def output() -> Iterator[None]:
    """Guard standard output until the process ends; lost text changes the exit code."""
    given: Any = sys.stdout
    if given is None:
        yield
        return
    how = {name: getattr(given, name) for name in ("encoding", "errors", "line_buffering", "write_through")}
    sys.stdout = mine = StandardOutput(given.detach(), **how)
    try:
        yield
    except SystemExit as ended:
        mine.flush()
        if mine.lost and not ended.code:
            raise SystemExit(1) from None
        raise
